"""The contents of e-mails: texts, sentences, profiles, samples, and new e-mails and copies with them."""
