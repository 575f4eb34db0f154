"""What jobq is made of: the lock file, the images below it, and under which licences it all is."""
