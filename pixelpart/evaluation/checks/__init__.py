"""Whether a robustness number can be trusted: warnings with every evaluation, and the tests of `pixelpart check`."""
