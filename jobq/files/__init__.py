"""Where tasks' files are kept beyond a machine: a folder that machines share, or a container of blobs."""
