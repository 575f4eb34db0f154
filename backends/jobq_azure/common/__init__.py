"""What all Azure services share: credentials, sessions, tokens, errors."""
