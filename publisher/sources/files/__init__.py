"""What sources share whose accounting comes in files: lines, rotation, archives, maps of a site."""
