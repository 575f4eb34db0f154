"""What tests of several rooms share: proxies that stand before real services and make them fail."""
