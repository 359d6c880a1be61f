//! Normalisation of names in a ZAP (chapter 03 §16, chapter 06 §7.2).
//!
//! # Theory
//! A ZAP with normalisation flags hashes the normalised form of each name and stores
//! the name as given. The form is that of Unicode 5.0.0, computed sequence by sequence
//! (a character and the marks behind it): simple upper-casing of the sequence's first
//! character, decomposition, canonical ordering, composition. It agrees with
//! NFx(upper(text)) for ordinary text. Where it does not (chapter 03 §16.1), hashes on
//! disk depend on the difference, so it is preserved.
//!
//! # Invariants
//! * Any bytes are accepted. Bytes that are not a character are copied unchanged.
//! * Characters that are not in Unicode 5.0.0 are inert: no mapping, class 0, never the
//!   result of a composition.
//! * A sequence has at most 31 characters plus the decomposition of one of them.
//!
//! # Departures
//! A lead byte that is not followed by continuation bytes is processed with as many
//! bytes as it announces, as the chapter describes, and is inert.

mod tables;

use std::borrow::Cow;

use base::{Error, ErrorKind, Result};
use unicode_normalization::char as ucd;

use tables::{ASSIGNED, UPPER};

/// Fold to upper case.
pub const TOUPPER: u64 = 0x02;
/// Canonical decomposition.
pub const NFD: u64 = 0x10;
/// Compatibility decomposition.
pub const NFKD: u64 = 0x20;
/// Canonical decomposition, then composition.
pub const NFC: u64 = 0x50;
/// Compatibility decomposition, then composition.
pub const NFKC: u64 = 0x60;

const CANONICAL: u64 = 0x10;
const COMPATIBLE: u64 = 0x20;
const COMPOSE: u64 = 0x40;
/// Characters collected before a sequence is cut.
const SEQUENCE_MAX: usize = 31;
const GRAPHEME_JOINER: char = '\u{34f}';
const YPOGEGRAMMENI: char = '\u{345}';

/// Whether the character is assigned in Unicode 5.0.0.
fn assigned(c: char) -> bool {
    let c = u32::from(c);
    let at = ASSIGNED.partition_point(|r| r.1 < c);
    ASSIGNED.get(at).is_some_and(|r| r.0 <= c)
}

/// Simple upper-casing by Unicode 5.0.0; identity for everything else.
pub(crate) fn simple_upper(c: char) -> char {
    if c.is_ascii() {
        return c.to_ascii_uppercase();
    }
    let code = u32::from(c);
    let at = UPPER.partition_point(|r| r.1 < code);
    match UPPER.get(at) {
        Some(&(first, _, stride, delta))
            if first <= code && (code - first) % u32::from(stride) == 0 =>
        {
            code.checked_add_signed(delta).and_then(char::from_u32).unwrap_or(c)
        }
        _ => c,
    }
}

fn class(c: char) -> u8 {
    if c.is_ascii() || !assigned(c) { 0 } else { ucd::canonical_combining_class(c) }
}

/// The composition of two characters, if Unicode 5.0.0 has one.
fn compose(a: char, b: char) -> Option<char> {
    ucd::compose(a, b).filter(|c| assigned(*c))
}

/// One character of a sequence.
#[derive(Clone, Copy)]
struct Item {
    c: char,
    class: u8,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Hangul {
    No,
    L,
    Lv,
    /// LVT, V or T: nothing can be appended.
    Closed,
}

fn hangul(c: char) -> Hangul {
    match u32::from(c) {
        0x1100..=0x1112 => Hangul::L,
        0x1161..=0x1175 | 0x11a8..=0x11c2 => Hangul::Closed,
        s @ 0xac00..=0xd7a3 if (s - 0xac00) % 28 == 0 => Hangul::Lv,
        0xac00..=0xd7a3 => Hangul::Closed,
        _ => Hangul::No,
    }
}

/// The first item of some bytes.
enum Next {
    /// A character and its length.
    Char(char, usize),
    /// Bytes to be copied unchanged.
    Inert(usize),
    End,
}

fn next(bytes: &[u8]) -> Next {
    let Some(&lead) = bytes.first() else { return Next::End };
    let len = match lead {
        0..=0x7f => return Next::Char(char::from(lead), 1),
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => return Next::Inert(1),
    };
    let Some(raw) = bytes.get(..len) else { return Next::Inert(bytes.len()) };
    match std::str::from_utf8(raw).ok().and_then(|s| s.chars().next()) {
        Some(c) => Next::Char(c, len),
        None => Next::Inert(len),
    }
}

struct Normalizer<'a> {
    rest: &'a [u8],
    flags: u64,
    out: Vec<u8>,
    seq: Vec<Item>,
}

impl Normalizer<'_> {
    fn push(&mut self, c: char) {
        self.out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
    }

    fn skip(&mut self, n: usize) {
        self.rest = self.rest.get(n..).unwrap_or_default();
    }

    fn decompose(&mut self, c: char) {
        let seq = &mut self.seq;
        if !assigned(c) {
            return seq.push(Item { c, class: 0 });
        }
        let emit = |c| seq.push(Item { c, class: class(c) });
        if self.flags & COMPATIBLE != 0 {
            ucd::decompose_compatible(c, emit);
        } else {
            ucd::decompose_canonical(c, emit);
        }
    }

    fn upper(&self, c: char) -> char {
        if self.flags & TOUPPER != 0 { simple_upper(c) } else { c }
    }

    fn step(&mut self) -> bool {
        match next(self.rest) {
            Next::End => return false,
            Next::Inert(n) => {
                let (raw, rest) = self.rest.split_at(n.min(self.rest.len()));
                self.out.extend_from_slice(raw);
                self.rest = rest;
            }
            Next::Char(c, n) => {
                self.skip(n);
                let alone = c.is_ascii() && self.rest.first().is_none_or(u8::is_ascii);
                if alone || self.flags & (CANONICAL | COMPATIBLE) == 0 {
                    self.push(self.upper(c));
                } else {
                    self.sequence(self.upper(c));
                }
            }
        }
        true
    }

    /// Steps 1 to 4 of the chapter, for a sequence that starts with `first`.
    fn sequence(&mut self, first: char) {
        self.seq.clear();
        self.decompose(first);
        let marks = self.collect(hangul(first));
        if marks {
            for run in self.seq.chunk_by_mut(|a, b| (a.class == 0) == (b.class == 0)) {
                run.sort_by_key(|i| i.class);
            }
        }
        if self.flags & COMPOSE != 0 {
            self.compose_sequence(marks, hangul(first) != Hangul::No);
        }
        for i in 0..self.seq.len() {
            self.push(self.seq[i].c);
        }
    }

    /// Collects the rest of the sequence; true if marks were appended.
    fn collect(&mut self, mut state: Hangul) -> bool {
        let mut marks = false;
        while let Next::Char(x, n) = next(self.rest) {
            if x.is_ascii() {
                break;
            }
            let code = u32::from(x);
            if state == Hangul::L && (0x1161..=0x1175).contains(&code) {
                state = Hangul::Lv;
                self.seq.push(Item { c: x, class: 0 });
            } else if state == Hangul::Lv && (0x11a8..=0x11c2).contains(&code) {
                state = Hangul::Closed;
                self.seq.push(Item { c: x, class: 0 });
            } else if state != Hangul::No || class(x) == 0 {
                break;
            } else {
                marks = true;
                self.decompose(x);
                if self.flags & TOUPPER != 0
                    && let Some(last) = self.seq.last_mut()
                    && last.c == YPOGEGRAMMENI
                {
                    last.c = '\u{399}';
                }
            }
            self.skip(n);
            if self.seq.len() >= SEQUENCE_MAX {
                self.seq.push(Item { c: GRAPHEME_JOINER, class: 0 });
                break;
            }
        }
        marks
    }

    fn compose_sequence(&mut self, marks: bool, jamo: bool) {
        let mut start = 0;
        while start < self.seq.len() {
            if self.seq[start].class == 0 {
                self.compose_at(start, jamo);
                // With marks appended, only the first starter is recomposed.
                if marks {
                    break;
                }
            }
            start += 1;
        }
        if jamo || self.seq.last().is_none_or(|last| last.class != 0) {
            return;
        }
        // A final starter may compose with the next character, unchanged.
        while let Next::Char(x, n) = next(self.rest) {
            let Some(last) = self.seq.last_mut() else { return };
            match compose(last.c, x) {
                Some(c) if hangul(c) == Hangul::No => last.c = c,
                _ => return,
            }
            self.skip(n);
        }
    }

    /// Composes the starter at `start` with the marks behind it, or jamo.
    fn compose_at(&mut self, start: usize, jamo: bool) {
        let mut at = start + 1;
        let mut last_class = 0;
        let mut composed = false;
        while let (Some(starter), Some(item)) = (self.seq.get(start), self.seq.get(at)) {
            if item.class == 0 && !jamo {
                break;
            }
            let blocked = !composed && last_class != 0 && last_class >= item.class;
            match compose(starter.c, item.c) {
                Some(c) if !blocked => {
                    self.seq[start].c = c;
                    self.seq.remove(at);
                    composed = true;
                }
                _ => {
                    last_class = item.class;
                    at += 1;
                }
            }
        }
    }
}

/// The normalised form of `name` under `flags` (a ZAP's normflags).
///
/// # Errors
/// `NameTooLong` when the result has more than `max` bytes (255; 1023 with long
/// names).
pub fn normalize(name: &[u8], flags: u64, max: usize) -> Result<Vec<u8>> {
    let mut n =
        Normalizer { rest: name, flags, out: Vec::with_capacity(name.len()), seq: Vec::new() };
    while n.step() {
        if n.out.len() > max {
            return Err(Error::new(ErrorKind::NameTooLong, "the normalised name is too long"));
        }
    }
    Ok(n.out)
}

/// Hash of a stored name in a ZAP with these flags (§15, §16). `bits` is 28, or 48 with
/// HASH64. Names that are too long to be normalised hash as their own bytes; they were
/// never stored.
pub fn hash_name(salt: u64, name: &[u8], flags: u64, bits: u32) -> u64 {
    if flags == 0 {
        return crate::zap::hash(salt, name, bits);
    }
    match normalize(name, flags, crate::zap::NAME_MAX_LONG - 1) {
        Ok(form) => crate::zap::hash(salt, &form, bits),
        Err(_) => crate::zap::hash(salt, name, bits),
    }
}

/// How a name is compared with stored names (§16).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum MatchType {
    /// Byte for byte.
    #[default]
    Exact,
    /// Both normalised with the ZAP's flags.
    Normalize,
    /// Both normalised with the ZAP's flags, but case counts.
    NormalizeMatchCase,
}

impl MatchType {
    /// The match type of a file system's look-up, from the flags of its directory ZAPs.
    ///
    /// `mixed`: casesensitivity is mixed. `other_case`: the caller requests the
    /// opposite of the usual rule (an exact case-changing rename when insensitive, an
    /// SMB look-up when mixed).
    pub fn of_directory(normflags: u64, mixed: bool, other_case: bool) -> MatchType {
        if normflags == 0 {
            MatchType::Exact
        } else if normflags & TOUPPER != 0 && mixed != other_case {
            MatchType::NormalizeMatchCase
        } else {
            MatchType::Normalize
        }
    }
}

/// A name to look up: its hash form and how to compare it, computed once.
#[derive(Clone, Debug)]
pub struct NameKey<'a> {
    /// The bytes that are hashed.
    hash_form: Cow<'a, [u8]>,
    /// The bytes with which stored names are compared, after `compare_flags`.
    compare_form: Cow<'a, [u8]>,
    compare_flags: Option<u64>,
    max: usize,
}

impl<'a> NameKey<'a> {
    /// Prepares a look-up of `name` in a ZAP with `normflags`; names have at most
    /// `max` bytes without NUL (255; 1023 for directories).
    ///
    /// # Errors
    /// `NameTooLong`; `Unsupported` for a normalising match in a ZAP without
    /// flags (§16).
    pub fn new(
        name: &'a [u8],
        normflags: u64,
        match_type: MatchType,
        max: usize,
    ) -> Result<NameKey<'a>> {
        if name.len() > max {
            return Err(Error::new(ErrorKind::NameTooLong, "the name is too long"));
        }
        let compare_flags = match match_type {
            MatchType::Exact => None,
            _ if normflags == 0 => {
                return Err(Error::unsupported("this ZAP does not normalise its names"));
            }
            MatchType::Normalize => Some(normflags),
            MatchType::NormalizeMatchCase => Some(normflags & !TOUPPER),
        };
        let form = |flags| match flags {
            0 => Ok(Cow::Borrowed(name)),
            flags => normalize(name, flags, max).map(Cow::Owned),
        };
        Ok(NameKey {
            hash_form: form(normflags)?,
            compare_form: form(compare_flags.unwrap_or(0))?,
            compare_flags,
            max,
        })
    }

    /// Hash in a ZAP with this salt and number of hash bits.
    pub fn hash(&self, salt: u64, bits: u32) -> u64 {
        crate::zap::hash(salt, &self.hash_form, bits)
    }

    /// The normalised form that is hashed.
    pub fn hash_form(&self) -> &[u8] {
        &self.hash_form
    }

    /// The only stored name that matches, if there is only one.
    pub fn exact(&self) -> Option<&[u8]> {
        matches!(self.compare_flags, None | Some(0)).then_some(&self.compare_form)
    }

    /// Whether a stored name matches.
    pub fn matches(&self, stored: &[u8]) -> bool {
        match self.compare_flags {
            None | Some(0) => stored == &*self.compare_form,
            Some(flags) => {
                normalize(stored, flags, self.max).is_ok_and(|form| form == *self.compare_form)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use unicode_normalization::UnicodeNormalization;

    fn unhex(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
    }

    /// Chapter 03 §21.2.
    #[test]
    fn vectors_of_the_chapter() {
        for (flags, input, form, hash) in [
            (0x02, "73747261c39f652e545854", "53545241c39f452e545854", 0x4547_e010_0000_0000),
            (0x02, "c3856e67737472c3b66d", "c3854e47535452c3964d", 0x6fc7_6d90_0000_0000),
            (0x10, "c3856e67737472c3b66d", "41cc8a6e677374726fcc886d", 0xd217_f2e0_0000_0000),
            (0x50, "41cc8a6e677374726fcc886d", "c3856e67737472c3b66d", 0x4c4d_c960_0000_0000),
            (0x12, "c3856e67737472c3b66d", "41cc8a4e475354524fcc884d", 0xaa42_7310_0000_0000),
            (0x20, "efac816c65c2b2", "66696c6532", 0xfa95_1470_0000_0000),
            (0x10, "ed959ceab880", "e18492e185a1e186abe18480e185b3e186af", 0x9d5a_b9a0_0000_0000),
            (0x50, "e18492e185a1e186ab", "ed959c", 0x2157_0cb0_0000_0000),
            (0x52, "ce90cd85", "ce90ce99", 0x6504_43f0_0000_0000u64),
        ] {
            let input = unhex(input);
            assert_eq!(normalize(&input, flags, 255).unwrap(), unhex(form), "{flags:#x}");
            assert_eq!(hash_name(1, &input, flags, 28), hash, "{flags:#x}");
        }
        // §21.4: "café" and "CAFÉ" under 0x12, salt 0x1e347.
        for name in ["café", "CAFÉ", "CAFE\u{301}"] {
            let h = hash_name(0x1e347, name.as_bytes(), 0x12, 28);
            assert_eq!(h, 0x9379_0420_0000_0000);
        }
    }

    #[test]
    fn upper_casing_is_that_of_5_0() {
        for (c, up) in [
            ('\u{250}', '\u{250}'),
            ('\u{10d0}', '\u{10d0}'),
            ('\u{df}', '\u{df}'),
            ('\u{1f80}', '\u{1f88}'),
            ('\u{1c5}', '\u{1c4}'),
            ('\u{e9}', '\u{c9}'),
            ('\u{ff}', '\u{178}'),
            ('\u{345}', '\u{399}'),
            ('z', 'Z'),
        ] {
            assert_eq!(simple_upper(c), up);
        }
        let count = ('\u{80}'..=char::MAX).filter(|c| simple_upper(*c) != *c).count();
        assert_eq!(count, 905);
    }

    #[test]
    fn later_characters_are_inert() {
        // U+1E9E (5.1) lower-cases to ß; U+A7AA (6.1); U+105C9 (14) decomposes.
        for c in ['\u{1e9e}', '\u{a7aa}', '\u{266}', '\u{1d1de}'] {
            let text = c.to_string();
            assert_eq!(normalize(text.as_bytes(), TOUPPER | NFC, 255).unwrap(), text.as_bytes());
        }
        // Combining marks of 5.1 have class 0 here: no reordering.
        let text = "a\u{1dcd}\u{323}";
        assert_eq!(ucd::canonical_combining_class('\u{1dcd}'), 234);
        assert_eq!(normalize(text.as_bytes(), NFD, 255).unwrap(), text.as_bytes());
    }

    #[test]
    fn bytes_that_are_no_characters() {
        for raw in [&b"\x80"[..], b"\xff\xfe", b"\xc3", b"\xe2\x82", b"\xf4\x90\x80\x80", b"\xc1A"]
        {
            let form = normalize(raw, TOUPPER | NFC, 255).unwrap();
            assert_eq!(form, raw.to_ascii_uppercase());
        }
        // A lead byte consumes as many bytes as it announces, even letters.
        assert_eq!(normalize(b"\xe2abc", TOUPPER, 255).unwrap(), b"\xe2abC");
    }

    #[test]
    fn sequences_are_cut() {
        let long = format!("a{}", "\u{301}".repeat(40));
        let form = normalize(long.as_bytes(), NFD, 255).unwrap();
        let form = String::from_utf8(form).unwrap();
        assert_eq!(form.chars().position(|c| c == GRAPHEME_JOINER), Some(31));
        assert!(normalize(&[0xcc, 0x81].repeat(128), NFD, 255).is_err());
        assert_eq!(normalize(&[b'a'; 255], TOUPPER, 255).unwrap(), [b'A'; 255]);
        assert!(normalize(&[b'a'; 256], TOUPPER, 255).is_err());
    }

    #[test]
    fn starters_that_compose_with_starters() {
        // Sinhala: U+0DD9 U+0DCF U+0DCA.
        let text = "\u{dd9}\u{dcf}\u{dca}";
        assert_eq!(normalize(text.as_bytes(), NFC, 255).unwrap(), "\u{ddd}".as_bytes());
        // Halfwidth jamo decompose, but do not compose.
        let half = normalize("\u{ffa1}\u{ffc2}".as_bytes(), NFKC, 255).unwrap();
        assert_eq!(half, "\u{1100}\u{1161}".as_bytes());
        // Two starters from one compatibility character.
        let dz = normalize("\u{1c4}".as_bytes(), NFKC, 255).unwrap();
        assert_eq!(dz, "D\u{17d}".as_bytes());
        let marked = normalize("\u{1c4}\u{323}".as_bytes(), NFKC, 255).unwrap();
        assert_eq!(marked, "DZ\u{323}\u{30c}".as_bytes());
    }

    /// After the first composition a later mark is tried even if blocked (§16.1).
    #[test]
    fn blocked_marks_compose_late() {
        let form = normalize("\u{1a0}\u{344}".as_bytes(), NFC, 255).unwrap();
        assert_eq!(form, "\u{1eda}\u{308}".as_bytes());
        let form = normalize("O\u{308}\u{301}".as_bytes(), NFC, 255).unwrap();
        assert_eq!(form, "\u{d6}\u{301}".as_bytes());
    }

    #[test]
    fn matching() {
        let key = |name: &'static str, flags, how| {
            NameKey::new(name.as_bytes(), flags, how, 255).unwrap()
        };
        let exact = key("Readme", 2, MatchType::Exact);
        assert!(exact.matches(b"Readme") && !exact.matches(b"README"));
        assert_eq!(exact.hash_form(), b"README");
        let folded = key("Readme", 2, MatchType::Normalize);
        assert!(folded.matches(b"rEADME"));
        let cased = key("caf\u{e9}", 0x12, MatchType::NormalizeMatchCase);
        assert!(cased.matches("cafe\u{301}".as_bytes()));
        assert!(!cased.matches("CAFE\u{301}".as_bytes()));
        assert_eq!(cased.hash(0x1e347, 28), 0x9379_0420_0000_0000);
        assert!(NameKey::new(b"x", 0, MatchType::Normalize, 255).is_err());
        assert!(NameKey::new(&[b'x'; 256], 0, MatchType::Exact, 255).is_err());
        let of = MatchType::of_directory;
        assert_eq!(of(0, false, false), MatchType::Exact);
        assert_eq!(of(0x10, false, false), MatchType::Normalize);
        assert_eq!(of(0x12, false, false), MatchType::Normalize);
        assert_eq!(of(0x12, false, true), MatchType::NormalizeMatchCase);
        assert_eq!(of(0x12, true, false), MatchType::NormalizeMatchCase);
        assert_eq!(of(0x12, true, true), MatchType::Normalize);
    }

    /// Excludes the deviations from Unicode that the chapter lists.
    fn ordinary(c: char) -> bool {
        let starts_with_mark = c.nfkd().next().is_some_and(|f| class(f) != 0) && class(c) == 0;
        let jamo =
            (0x1100..=0x11ff).contains(&u32::from(c)) || ('\u{ff00}'..='\u{ffef}').contains(&c);
        assigned(c)
            && c != YPOGEGRAMMENI
            && !starts_with_mark
            && !jamo
            && !c.nfkd().skip(1).any(|d| class(d) == 0 && c.nfkd().count() > 1)
    }

    fn text() -> impl Strategy<Value = String> {
        let letter = (0u32..0x3000).prop_filter_map("ordinary letter", |c| {
            char::from_u32(c).filter(|c| *c != '\0' && class(*c) == 0 && ordinary(*c))
        });
        let mark = (0x300u32..0x362).prop_filter_map("mark", |c| {
            char::from_u32(c).filter(|c| class(*c) != 0 && ordinary(*c))
        });
        let syllable = (0xac00u32..0xd7a4).prop_filter_map("Hangul", char::from_u32);
        let cluster = (prop_oneof![4 => letter, 1 => syllable], prop::collection::vec(mark, 0..3))
            .prop_map(|(c, marks)| {
                let mut text = c.to_string();
                if hangul(c) != Hangul::No {
                    return text;
                }
                let count = |t: &str| t.nfkd().filter(|c| class(*c) != 0).count();
                for mark in marks {
                    // From three marks on, a blocked one may compose: see
                    // `blocked_marks_compose_late`.
                    let upper = format!("{}{mark}", simple_upper(c)) + &text[c.len_utf8()..];
                    if count(&text) + count(&mark.to_string()) <= 2 && count(&upper) <= 2 {
                        text.push(mark);
                    }
                }
                text
            });
        prop::collection::vec(cluster, 0..12).prop_map(|v| v.concat())
    }

    proptest! {
        #[test]
        fn ordinary_text_follows_unicode(text in text(), upper in any::<bool>()) {
            let cased: String = if upper { text.chars().map(simple_upper).collect() } else { text.clone() };
            let fold = if upper { TOUPPER } else { 0 };
            for (flags, expect) in [
                (NFD, cased.nfd().collect::<String>()),
                (NFKD, cased.nfkd().collect()),
                (NFC, cased.nfc().collect()),
                (NFKC, cased.nfkc().collect()),
            ] {
                let form = normalize(text.as_bytes(), flags | fold, 4096).unwrap();
                prop_assert_eq!(String::from_utf8_lossy(&form).into_owned(), expect, "{:#x}", flags);
            }
        }

        #[test]
        fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            crate::fuzzing2::fuzz_normalize(&bytes);
        }
    }
}
