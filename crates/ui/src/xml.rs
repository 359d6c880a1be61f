//! Text in XML and SVG.

/// Text with the special characters of XML escaped. Control characters, which XML does not
/// allow, are left out.
pub fn escape(text: &str) -> String {
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
