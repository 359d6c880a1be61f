//! Kstats as JSON: one object, keyed by path.

use std::fmt::Write;

use crate::{Kstat, KstatBody, Value};

fn quoted(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            c if u32::from(c) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// `{"arcstats":{"class":"misc","crtime":1,"snaptime":2,"data":{"hits":3}}}`; a
/// text's `data` is a string. Times are nanoseconds.
pub fn render(kstats: &[(String, Kstat)]) -> String {
    let mut out = String::from("{");
    for (i, (path, kstat)) in kstats.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        quoted(&mut out, path);
        out.push_str(":{\"class\":");
        quoted(&mut out, &kstat.class);
        let (made, read) = (kstat.crtime, kstat.snaptime);
        let _ = write!(out, ",\"crtime\":{made},\"snaptime\":{read},\"data\":");
        match &kstat.body {
            KstatBody::Raw(text) | KstatBody::Text(text) => quoted(&mut out, text),
            KstatBody::Named(entries) => {
                out.push('{');
                for (i, (name, value)) in entries.iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    quoted(&mut out, name);
                    out.push(':');
                    match value {
                        Value::Str(s) => quoted(&mut out, s),
                        number => {
                            let _ = write!(out, "{number}");
                        }
                    }
                }
                out.push('}');
            }
        }
        out.push('}');
    }
    out.push('}');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_words_and_texts() {
        let mixed = Kstat::named(vec![
            ("dataset_name".into(), Value::Str("a\"\u{1}\n".into())),
            ("avail".into(), Value::I64(-1)),
        ]);
        let text = render(&[
            ("tank/objset-0x1".into(), mixed),
            ("tank/state".into(), Kstat::new("misc", KstatBody::Text("ONLINE\n".into()))),
        ]);
        assert_eq!(
            text,
            "{\"tank/objset-0x1\":{\"class\":\"misc\",\"crtime\":0,\"snaptime\":0,\"data\":\
             {\"dataset_name\":\"a\\\"\\u0001\\n\",\"avail\":-1}},\"tank/state\":{\"class\":\
             \"misc\",\"crtime\":0,\"snaptime\":0,\"data\":\"ONLINE\\n\"}}"
        );
        assert_eq!(render(&[]), "{}");
    }
}
