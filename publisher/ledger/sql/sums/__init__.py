"""What a target's jobs come to: by month, by submit host, and by the receiver's keys."""
