//! Name/value lists, packed in XDR and native encoding.
