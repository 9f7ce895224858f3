"""What programs written for other libraries find in rueda."""
