"""What happened in each minute, summed for the admin's charts. Apps declare their sums with `summed`."""
