//! Block checksums (chapter 02 §5).
//!
//! # Theory
//! A checksum is four 64-bit words. [`compute`] calculates them for a whole block.
//! [`embedded`] handles blocks that carry their own checksum (labels, gang headers, log
//! blocks). Salted algorithms take a [`SaltTemplate`], which contains everything that
//! depends only on the pool's salt.
//!
//! # Invariants
//! * Words are values, not bytes: they compare equal to the block pointer's
//!   words after those were read in the pool's byte order.
//! * Every length is accepted. The fletchers ignore a tail shorter than their
//!   unit (16 or 4 bytes); sectors never have one.

pub mod edonr;
pub mod embedded;
pub mod fletcher;
#[cfg(target_arch = "x86_64")]
mod fletcher_x86;
pub mod skein;

use sha2::Digest;

/// A checksum: words 0 to 3 of `blk_cksum`.
pub type Words = [u64; 4];

/// A checksum algorithm, as stored in a block pointer (chapter 02 §5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Checksum {
    /// None; the words are zero.
    Off = 2,
    /// SHA-256 embedded in a vdev label.
    Label = 3,
    /// SHA-256 embedded in a gang header.
    GangHeader = 4,
    /// Fletcher-2 embedded at the end of a legacy log block.
    Zilog = 5,
    /// Fletcher-2.
    Fletcher2 = 6,
    /// Fletcher-4, the default.
    Fletcher4 = 7,
    /// SHA-256.
    Sha256 = 8,
    /// Fletcher-4 embedded in the head of a log block.
    Zilog2 = 9,
    /// None, and parity is not verified either.
    NoParity = 10,
    /// SHA-512/256.
    Sha512 = 11,
    /// Skein-512-256, keyed by the pool's salt.
    Skein = 12,
    /// Edon-R-512, prefixed by the pool's salt.
    Edonr = 13,
    /// BLAKE3, keyed by the pool's salt.
    Blake3 = 14,
}

impl Checksum {
    /// Every algorithm, by id.
    pub const ALL: [Checksum; 13] = [
        Checksum::Off,
        Checksum::Label,
        Checksum::GangHeader,
        Checksum::Zilog,
        Checksum::Fletcher2,
        Checksum::Fletcher4,
        Checksum::Sha256,
        Checksum::Zilog2,
        Checksum::NoParity,
        Checksum::Sha512,
        Checksum::Skein,
        Checksum::Edonr,
        Checksum::Blake3,
    ];

    /// The algorithm with this id; `None` for the property-only ids 0 (inherit)
    /// and 1 (on) and for unknown ones.
    pub fn from_id(id: u8) -> Option<Checksum> {
        Checksum::ALL.into_iter().find(|c| c.id() == id)
    }

    /// The id in block pointers and properties.
    pub fn id(self) -> u8 {
        self as u8
    }

    /// The ZFS name, as in the `checksum` property and in zdb's output.
    pub fn name(self) -> &'static str {
        match self {
            Checksum::Off => "off",
            Checksum::Label => "label",
            Checksum::GangHeader => "gang_header",
            Checksum::Zilog => "zilog",
            Checksum::Fletcher2 => "fletcher2",
            Checksum::Fletcher4 => "fletcher4",
            Checksum::Sha256 => "sha256",
            Checksum::Zilog2 => "zilog2",
            Checksum::NoParity => "noparity",
            Checksum::Sha512 => "sha512",
            Checksum::Skein => "skein",
            Checksum::Edonr => "edonr",
            Checksum::Blake3 => "blake3",
        }
    }

    /// The algorithm that ZFS calls `name`; "on" is fletcher4.
    pub fn from_name(name: &str) -> Option<Checksum> {
        if name == "on" {
            return Some(Checksum::Fletcher4);
        }
        Checksum::ALL.into_iter().find(|c| c.name() == name)
    }

    /// Stored inside the block (flag E).
    pub fn is_embedded(self) -> bool {
        matches!(self, Checksum::Label | Checksum::GangHeader | Checksum::Zilog | Checksum::Zilog2)
    }

    /// Depends on the pool's salt (flag S).
    pub fn is_salted(self) -> bool {
        matches!(self, Checksum::Skein | Checksum::Edonr | Checksum::Blake3)
    }

    /// Strong enough for dedup without comparing the blocks (flag D).
    pub fn is_dedup_strong(self) -> bool {
        matches!(self, Checksum::Sha256 | Checksum::Sha512 | Checksum::Skein | Checksum::Blake3)
    }

    /// Usable for metadata (flag M).
    pub fn is_metadata_ok(self) -> bool {
        !matches!(
            self,
            Checksum::Off
                | Checksum::Zilog
                | Checksum::Fletcher2
                | Checksum::Zilog2
                | Checksum::NoParity
        )
    }

    /// Strong enough to skip a write of equal data (flag N).
    pub fn is_nopwrite(self) -> bool {
        self.is_dedup_strong() || self == Checksum::Edonr
    }
}

/// Precomputed data that depends only on the pool's 32-byte salt (chapter 02 §5.8).
#[derive(Clone)]
pub struct SaltTemplate {
    blake3_key: [u8; 32],
    skein: skein::Keyed,
    edonr: edonr::Prefixed,
}

impl SaltTemplate {
    /// Prepares `salt`; about three compressions of Skein and six of Edon-R.
    pub fn new(salt: &[u8; 32]) -> SaltTemplate {
        SaltTemplate {
            blake3_key: *salt,
            skein: skein::Keyed::new(salt),
            edonr: edonr::Prefixed::new(salt),
        }
    }

    /// The salt itself.
    pub fn salt(&self) -> &[u8; 32] {
        &self.blake3_key
    }
}

impl Default for SaltTemplate {
    /// The zero salt, for callers that use no salted algorithm.
    fn default() -> SaltTemplate {
        SaltTemplate::new(&[0; 32])
    }
}

impl std::fmt::Debug for SaltTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SaltTemplate")
    }
}

fn be_words(digest: &[u8; 32]) -> Words {
    words(digest, u64::from_be_bytes)
}

fn le_words(digest: &[u8; 32]) -> Words {
    words(digest, u64::from_le_bytes)
}

fn words(digest: &[u8; 32], read: fn([u8; 8]) -> u64) -> Words {
    let mut out = [0; 4];
    for (w, bytes) in out.iter_mut().zip(digest.as_chunks::<8>().0) {
        *w = read(*bytes);
    }
    out
}

/// The checksum of `data`.
///
/// `swapped`: the block was written on a machine of the other byte order
/// (chapter 02 §5.9; Edon-R is not reliable then). Embedded algorithms give
/// their plain hash of `data`: see [`embedded`] for the procedure around it.
pub fn compute(alg: Checksum, data: &[u8], salt: &SaltTemplate, swapped: bool) -> Words {
    let words = match alg {
        Checksum::Off | Checksum::NoParity => return [0; 4],
        Checksum::Fletcher2 | Checksum::Zilog => return fletcher::fletcher2(data, swapped),
        Checksum::Fletcher4 | Checksum::Zilog2 => return fletcher::fletcher4(data, swapped),
        Checksum::Sha256 | Checksum::Label | Checksum::GangHeader => {
            // Defined as big-endian words, so byte order changes nothing.
            return be_words(&sha2::Sha256::digest(data).into());
        }
        Checksum::Sha512 => le_words(&sha2::Sha512_256::digest(data).into()),
        Checksum::Skein => le_words(&salt.skein.hash(data)),
        Checksum::Edonr => le_words(&salt.edonr.hash(data)),
        Checksum::Blake3 => le_words(blake3::keyed_hash(&salt.blake3_key, data).as_bytes()),
    };
    if swapped { words.map(u64::swap_bytes) } else { words }
}

/// The SHA-512 hash of `data`, of which encrypted datasets make the MACs of indirect blocks.
pub fn sha512(data: &[u8]) -> [u8; 64] {
    sha2::Sha512::digest(data).into()
}

/// Whether `data` has the checksum `expected`.
///
/// "off" and "noparity" compare too: their words must be zero.
pub fn verify(
    alg: Checksum,
    data: &[u8],
    salt: &SaltTemplate,
    swapped: bool,
    expected: &Words,
) -> bool {
    compute(alg, data, salt, swapped) == *expected
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(s: &str) -> Words {
        let mut out = [0; 4];
        for (w, part) in out.iter_mut().zip(s.split(':')) {
            *w = u64::from_str_radix(part, 16).unwrap();
        }
        out
    }

    const A: [(Checksum, &str); 7] = [
        (
            Checksum::Fletcher2,
            "efcfaf8f6f4f2f00:f0d0b09070503000:4a38261401efdd00:dac8b6a492806d80",
        ),
        (
            Checksum::Fletcher4,
            "00000040c03fbf00:00000da342e27500:000214fa7f828a80:003d9765c9f3c980",
        ),
        (Checksum::Sha256, "110009dcee21620b:166f3abfecb5eff7:a873be729d1c2d53:822e7acc5f34eb9b"),
        (Checksum::Sha512, "6cf5b1411d91141d:0ea8ddb86fa627f0:991896779c0da9d7:3bdc08f7e9f3faed"),
        (Checksum::Skein, "df06b17bad515284:c1074e6c80f80357:0564949cf231e28f:3b30efa65148a406"),
        (Checksum::Edonr, "86f009c293823406:1787f335116ef352:616de2d3955eb1e1:0f0e3039494fa11f"),
        (Checksum::Blake3, "68e5f03a15d32d73:2e2d8e52a9e2d91f:b6eb0668176e2d68:95bf9be2259b6c22"),
    ];
    const B: [(Checksum, &str); 7] = [
        (
            Checksum::Fletcher2,
            "ffffffffffffff80:ffffffffffffff80:ca8a5e3bfd88c7c0:f74799c7c7c3a3c0",
        ),
        (
            Checksum::Fletcher4,
            "000001fffffffe00:0003ffee1c778f00:055664326c278200:587334b373c10f80",
        ),
        (Checksum::Sha256, "d24ac44c83cce842:b67a82d2f77bcbe5:e41dbd555605c928:32d609e29c5a997c"),
        (Checksum::Sha512, "375f65261f36fc69:78056a45f59b8fd3:b26a0175aad0a87e:65e359856c4e2962"),
        (Checksum::Skein, "0ee74f1f1d7170fd:6e0189ca4c8ff228:3dc785d74dded32c:0c1ddeb1cec47841"),
        (Checksum::Edonr, "714113e045f0f3eb:5df5dfd73cc0f656:6d2dc26998d89971:bee2a45256461a16"),
        (Checksum::Blake3, "f42039dff3a071e2:79c41427695ba9cc:c674abc65b255ed7:e0ec765ed46ab19b"),
    ];

    /// Chapter 02 §5.12.
    #[test]
    fn vectors() {
        let salt = SaltTemplate::new(&std::array::from_fn(|i| i as u8));
        let a: Vec<u8> = (0..512).map(|i| i as u8).collect();
        let b: Vec<u8> = (0..4096usize).map(|i| (7 * i + (i >> 8)) as u8).collect();
        for (data, rows) in [(&a, A), (&b, B)] {
            for (alg, want) in rows {
                assert_eq!(compute(alg, data, &salt, false), hex(want), "{alg:?}");
                assert!(verify(alg, data, &salt, false, &hex(want)));
                let mut bad = data.clone();
                bad[77] ^= 1;
                assert!(!verify(alg, &bad, &salt, false, &hex(want)));
            }
        }
        assert_eq!(compute(Checksum::Off, &a, &salt, false), [0; 4]);
    }

    #[test]
    fn byte_order() {
        let salt = SaltTemplate::default();
        let a: Vec<u8> = (0..512).map(|i| (i * 5) as u8).collect();
        let plain = |alg| compute(alg, &a, &salt, false);
        let other = |alg| compute(alg, &a, &salt, true);
        assert_eq!(other(Checksum::Sha256), plain(Checksum::Sha256));
        assert_eq!(other(Checksum::Blake3), plain(Checksum::Blake3).map(u64::swap_bytes));
        assert_eq!(other(Checksum::Sha512), plain(Checksum::Sha512).map(u64::swap_bytes));
        let mut swapped4 = a.clone();
        swapped4.as_chunks_mut::<4>().0.iter_mut().for_each(|w| w.reverse());
        assert_eq!(
            other(Checksum::Fletcher4),
            compute(Checksum::Fletcher4, &swapped4, &salt, false)
        );
        let mut swapped8 = a.clone();
        swapped8.as_chunks_mut::<8>().0.iter_mut().for_each(|w| w.reverse());
        assert_eq!(
            other(Checksum::Fletcher2),
            compute(Checksum::Fletcher2, &swapped8, &salt, false)
        );
    }

    #[test]
    fn ids_names_flags() {
        for id in 0..=255u8 {
            match Checksum::from_id(id) {
                Some(c) => {
                    assert_eq!(c.id(), id);
                    assert_eq!(Checksum::from_name(c.name()), Some(c));
                }
                None => assert!(!(2..=14).contains(&id)),
            }
        }
        let flags = |f: fn(Checksum) -> bool| {
            Checksum::ALL.into_iter().filter(|&c| f(c)).map(Checksum::id).collect::<Vec<_>>()
        };
        assert_eq!(flags(Checksum::is_metadata_ok), [3, 4, 7, 8, 11, 12, 13, 14]);
        assert_eq!(flags(Checksum::is_embedded), [3, 4, 5, 9]);
        assert_eq!(flags(Checksum::is_dedup_strong), [8, 11, 12, 14]);
        assert_eq!(flags(Checksum::is_salted), [12, 13, 14]);
        assert_eq!(flags(Checksum::is_nopwrite), [8, 11, 12, 13, 14]);
    }
}
