//! Resume tokens: where an interrupted receive goes on, as text (chapter 07 §12.2).

use std::fmt::Write as _;

use base::{Error, Result};
use codec::checksum::fletcher::fletcher4;
use codec::compress::{Compression, compress, decompress};
use nvlist::{NvList, Order};

/// The largest packed list of a token, bytes.
const PACKED_MAX: u64 = 1 << 20;
/// The level of the compression.
const ZLIB: Compression = Compression::Gzip(6);

/// What a receiver keeps of an interrupted stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResumeToken {
    /// Guid of the snapshot that the stream is incremental to.
    pub from_guid: Option<u64>,
    /// The object of the last record that was applied.
    pub object: u64,
    /// Its byte offset.
    pub offset: u64,
    /// Bytes of the stream that were received.
    pub bytes: u64,
    /// Guid of the snapshot that is received.
    pub to_guid: u64,
    /// The snapshot's name on the sender.
    pub to_name: String,
    /// The stream has large blocks.
    pub large_blocks: bool,
    /// It has embedded blocks.
    pub embedded: bool,
    /// It has compressed payloads.
    pub compressed: bool,
    /// It is raw.
    pub raw: bool,
    /// Guids of the snapshots by which the dataset is redacted.
    pub redact_snaps: Option<Vec<u64>>,
    /// Guids of the snapshots of the redaction bookmark that the stream is incremental to.
    pub book_redact_snaps: Option<Vec<u64>>,
}

fn bad(why: &str) -> Error {
    Error::invalid(format!("resume token is corrupt ({why})"))
}

impl ResumeToken {
    /// The list that a token carries.
    pub fn to_list(&self) -> NvList {
        let mut list = NvList::new();
        if let Some(guid) = self.from_guid {
            list.add_u64("fromguid", guid);
        }
        list.add_u64("object", self.object).add_u64("offset", self.offset);
        list.add_u64("bytes", self.bytes).add_u64("toguid", self.to_guid);
        list.add_str("toname", &self.to_name);
        let flags = [
            (self.large_blocks, "largeblockok"),
            (self.embedded, "embedok"),
            (self.compressed, "compressok"),
            (self.raw, "rawok"),
        ];
        for (_, name) in flags.iter().filter(|(set, _)| *set) {
            list.add_flag(name);
        }
        let guids =
            [(&self.redact_snaps, "redact_snaps"), (&self.book_redact_snaps, "book_redact_snaps")];
        for (guids, name) in guids {
            if let Some(guids) = guids {
                list.insert(name, guids.clone());
            }
        }
        list
    }

    /// Its text.
    pub fn encode(&self) -> String {
        let packed = self.to_list().pack_native(Order::Little);
        // Stored blocks of zlib take a few bytes more than their content.
        let mut zipped = vec![0; packed.len() + packed.len() / 100 + 64];
        let len = compress(ZLIB, &packed, &mut zipped).unwrap_or(0);
        zipped.truncate(len);
        let mut text = format!("1-{:x}-{:x}-", sum_of(&zipped), packed.len());
        for byte in zipped {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    /// The list of a token's text, with pairs that this version does not know.
    ///
    /// # Errors
    /// `Invalid` for what is no token, or a damaged one.
    pub fn decode_list(text: &str) -> Result<NvList> {
        let mut parts = text.trim().splitn(4, '-');
        let mut part = || parts.next().ok_or_else(|| bad("invalid format"));
        let (version, sum, size, hex) = (part()?, part()?, part()?, part()?);
        if version != "1" {
            let why = format!("resume token version {version} is not supported");
            return Err(Error::invalid(why));
        }
        let number = |text| u64::from_str_radix(text, 16).map_err(|_| bad("invalid format"));
        let (sum, size) = (number(sum)?, number(size)?);
        let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
        let digit = |b: u8| char::from(b).to_digit(16);
        let byte = |&[high, low]: &[u8; 2]| Some((digit(high)? << 4 | digit(low)?) as u8);
        let zipped: Option<Vec<u8>> = pairs.iter().map(byte).collect();
        let zipped =
            zipped.filter(|_| rest.is_empty()).ok_or_else(|| bad("payload is not hex-encoded"))?;
        if sum_of(&zipped) != sum {
            return Err(bad("incorrect checksum"));
        }
        if size > PACKED_MAX {
            return Err(bad("too large"));
        }
        let mut packed = vec![0; size as usize];
        decompress(ZLIB.id(), &zipped, &mut packed).map_err(|_| bad("decompression failed"))?;
        NvList::unpack(&packed).map_err(|_| bad("nvlist_unpack failed"))
    }

    /// The token of a text.
    ///
    /// # Errors
    /// As [`ResumeToken::decode_list`], and for a list that lacks a value.
    pub fn decode(text: &str) -> Result<ResumeToken> {
        let list = ResumeToken::decode_list(text)?;
        let need = |name| list.need_u64(name).map_err(|_| bad("a value is missing"));
        let guids = |name| list.u64s(name).map(<[u64]>::to_vec);
        Ok(ResumeToken {
            from_guid: list.u64("fromguid"),
            object: need("object")?,
            offset: need("offset")?,
            bytes: need("bytes")?,
            to_guid: need("toguid")?,
            to_name: list.need_str("toname").map_err(|_| bad("a value is missing"))?.to_owned(),
            large_blocks: list.flag("largeblockok"),
            embedded: list.flag("embedok"),
            compressed: list.flag("compressok"),
            raw: list.flag("rawok"),
            redact_snaps: guids("redact_snaps"),
            book_redact_snaps: guids("book_redact_snaps"),
        })
    }
}

/// The first word of fletcher-4 over whole words.
fn sum_of(zipped: &[u8]) -> u64 {
    let whole = zipped.len() & !3;
    fletcher4(zipped.get(..whole).unwrap_or_default(), false)[0]
}
