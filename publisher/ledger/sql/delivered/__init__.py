"""Which runs of jobs were delivered: pages by place, and how they are found."""
