"""What an e-mail says: texts, sentences, profiles, samples, and new e-mails and copies with them."""
