//! Changing one field of one block of metadata.
//!
//! # Theory
//! [`fields`] lists the fields of the structures of chapters 03 to 06: dnodes and their
//! bonus buffers, block pointers, object sets with their log headers, micro and fat ZAPs,
//! leaves of these, space maps, lists and arrays, packed lists of the configuration.
//! [`mutate`] draws a block, a field of it and a wrong value. [`crate::forge`] then fixes
//! every checksum above, so that the engine reads the value itself.

use cenote::inspect::ondisk::ObjType;
use cenote::inspect::ondisk::blkptr::BLKPTR_SIZE;
use cenote::inspect::ondisk::dnode::DNODE_SIZE;

use crate::Rng;
use crate::forge::{Forge, MetadataBlock};

/// A field within a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// The structure and the field's name or number.
    pub name: String,
    /// Its first byte.
    pub at: usize,
    /// Its bytes: 1, 2, 4 or 8.
    pub len: usize,
}

struct FieldList<'a> {
    bytes: &'a [u8],
    out: Vec<Field>,
}

impl FieldList<'_> {
    fn field(&mut self, name: impl Into<String>, at: usize, len: usize) {
        if at + len <= self.bytes.len() {
            self.out.push(Field { name: name.into(), at, len });
        }
    }

    fn words(&mut self, name: &str, from: usize, to: usize) {
        for (i, at) in (from..to.min(self.bytes.len())).step_by(8).enumerate() {
            self.field(format!("{name}[{i}]"), at, 8);
        }
    }

    fn is_zero(&self, from: usize, len: usize) -> bool {
        self.bytes.get(from..from + len).is_none_or(|b| b.iter().all(|x| *x == 0))
    }

    fn pointer(&mut self, name: &str, at: usize) {
        if self.is_zero(at, BLKPTR_SIZE) {
            return;
        }
        for (i, part) in ["dva0", "dva0 offset", "dva1", "dva1 offset", "dva2", "dva2 offset"]
            .into_iter()
            .chain(["prop", "pad", "pad", "physical birth", "birth", "fill"])
            .chain(["checksum 0", "checksum 1", "checksum 2", "checksum 3"])
            .enumerate()
        {
            self.field(format!("{name} {part}"), at + i * 8, 8);
        }
        for byte in 0..8 {
            self.field(format!("{name} prop byte {byte}"), at + 48 + byte, 1);
        }
    }

    fn dnode(&mut self, name: &str, at: usize) {
        let byte = |i: usize| usize::from(self.bytes.get(at + i).copied().unwrap_or(0));
        let (count, bonus_type) = (byte(3), byte(4));
        let bonus_len = byte(10) | byte(11) << 8;
        for (i, field) in ["type", "indirect shift", "levels", "nblkptr", "bonus type", "checksum"]
            .into_iter()
            .chain(["compression", "flags"])
            .enumerate()
        {
            self.field(format!("{name} {field}"), at + i, 1);
        }
        self.field(format!("{name} block size"), at + 8, 2);
        self.field(format!("{name} bonus length"), at + 10, 2);
        self.field(format!("{name} extra slots"), at + 12, 1);
        self.field(format!("{name} max blkid"), at + 16, 8);
        self.field(format!("{name} used"), at + 24, 8);
        for i in 0..count.min(3) {
            self.pointer(&format!("{name} pointer {i}"), at + 64 + i * BLKPTR_SIZE);
        }
        let bonus = at + 64 + count.min(3) * BLKPTR_SIZE;
        let named = format!("{name} bonus of type {bonus_type}");
        self.words(&named, bonus, bonus + bonus_len.min(DNODE_SIZE));
        if bonus_type == usize::from(ObjType::SA.0) {
            self.field(format!("{named} layout"), bonus + 4, 2);
            self.field(format!("{named} magic"), bonus, 4);
        }
    }

    fn zap(&mut self) {
        let word = self.bytes.first_chunk::<8>().map_or(0, |w| u64::from_le_bytes(*w));
        match word & 0xf {
            // A header and its table, or a leaf, by the low bits of the type word.
            1 => {
                self.words("ZAP header", 0, 128);
                let half = self.bytes.len() / 2;
                self.words("ZAP pointer table", half, half + 64);
            }
            0 if word != 0 => {
                self.words("ZAP leaf header", 0, 32);
                for at in (24..48).step_by(2) {
                    self.field(format!("ZAP leaf header at {at}"), at, 2);
                }
                let hash = 48 + (self.bytes.len() >> 5) * 2;
                for at in (48..hash).step_by(2).filter(|at| self.bytes[*at] != 0xff) {
                    self.out.push(Field { name: "ZAP leaf hash".into(), at, len: 2 });
                }
                for chunk in (hash..self.bytes.len().saturating_sub(24)).step_by(24) {
                    if self.is_zero(chunk, 24) {
                        continue;
                    }
                    self.field("ZAP chunk type", chunk, 1);
                    self.field("ZAP chunk integer size", chunk + 1, 1);
                    for at in (2..24).step_by(2) {
                        self.field(format!("ZAP chunk at {at}"), chunk + at, 2);
                    }
                }
            }
            3 => {
                self.words("micro ZAP header", 0, 24);
                for entry in (64..self.bytes.len().saturating_sub(63)).step_by(64) {
                    if self.is_zero(entry, 64) {
                        continue;
                    }
                    self.field("micro ZAP value", entry, 8);
                    self.field("micro ZAP differentiator", entry + 8, 4);
                    for at in [14, 15, 16, 63] {
                        self.field(format!("micro ZAP name byte {}", at - 14), entry + at, 1);
                    }
                }
            }
            _ => self.words("ZAP", 0, 128),
        }
    }
}

/// The fields of a block of metadata.
pub fn fields(node: &MetadataBlock) -> Vec<Field> {
    let mut list = FieldList { bytes: &node.content, out: Vec::new() };
    let position = &node.position;
    if position.level < 0 {
        list.dnode("meta dnode", 0);
        list.words("log header", DNODE_SIZE, DNODE_SIZE + 192);
        list.pointer("log header's pointer", DNODE_SIZE + 16);
        list.words("object set", DNODE_SIZE + 192, 1024);
        for (i, name) in ["user", "group", "project"].into_iter().enumerate() {
            list.dnode(&format!("{name} accounting"), 1024 + i * DNODE_SIZE);
        }
    } else if position.level > 0 {
        for at in (0..node.content.len()).step_by(BLKPTR_SIZE) {
            list.pointer("indirect pointer", at);
        }
    } else if position.object == 0 {
        for at in (0..node.content.len()).step_by(DNODE_SIZE) {
            // The interior slots of a large dnode look like dnodes; changing them is
            // another mutation.
            if !list.is_zero(at, DNODE_SIZE) {
                list.dnode("dnode", at);
            }
        }
    } else if position.object_type.is_zap() {
        list.zap();
    } else if position.object_type == ObjType::PACKED_NVLIST {
        for at in (0..node.content.len()).step_by(4) {
            if !list.is_zero(at, 4) {
                list.field("packed list", at, 4);
            }
        }
    } else {
        let name = position.object_type.name();
        for at in (0..node.content.len()).step_by(8) {
            if at < 64 || !list.is_zero(at, 8) {
                list.field(name, at, 8);
            }
        }
    }
    list.out
}

/// A wrong value for a field that holds `old`.
fn wrong(rng: &mut Rng, old: u64, bits: u32, other: u64) -> u64 {
    let mask = u64::MAX >> (64 - bits);
    let value = match rng.below(9) {
        0 => old.wrapping_add(1),
        1 => old.wrapping_sub(1),
        2 => old ^ 1 << rng.below(u64::from(bits)),
        3 => 0,
        4 => u64::MAX,
        5 => 1 << (bits - 1),
        6 => rng.number(),
        7 => old << 1,
        _ => other,
    };
    value & mask
}

/// The kind of a block. Kinds are drawn equally often, regardless of the number of blocks
/// of each.
fn kind(node: &MetadataBlock) -> (bool, i8, bool, u8) {
    let p = &node.position;
    (p.objset == 0, p.level.signum(), p.object == 0, p.object_type.0)
}

/// Changes one word of a record of an intent log.
fn mutate_log(forge: &mut Forge, rng: &mut Rng) -> Option<String> {
    let blocks = forge.log_blocks();
    if blocks.is_empty() {
        return None;
    }
    let (at, ptr, _) = &blocks[rng.index(blocks.len())];
    let mut description = None;
    forge.change_log(*at, ptr, |records| {
        // The first words are drawn more often: headers and pointers are there.
        let words = (records.len() / 8).min(if rng.below(2) == 0 { 24 } else { usize::MAX });
        let at = rng.index(words.max(1)) * 8;
        let Some(word) = records.get_mut(at..at + 8) else { return };
        let old = u64::from_le_bytes(word.try_into().unwrap());
        let new = wrong(rng, old, 64, old.rotate_left(32));
        word.copy_from_slice(&new.to_le_bytes());
        description = Some(format!("log record at {at:#x}: {old:#x} -> {new:#x}"));
    });
    description
}

/// Changes one field, and every checksum above it; returns a description, or `None` if the
/// drawn block has no field or the value stayed the same.
pub fn mutate(forge: &mut Forge, rng: &mut Rng) -> Option<String> {
    if rng.below(16) == 0 {
        return mutate_log(forge, rng);
    }
    let mut kinds: Vec<_> = forge.nodes.iter().map(kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let wanted = kinds[rng.index(kinds.len())];
    let of_kind: Vec<usize> =
        (0..forge.nodes.len()).filter(|i| kind(&forge.nodes[*i]) == wanted).collect();
    let id = of_kind[rng.index(of_kind.len())];
    let node = &forge.nodes[id];
    let all = fields(node);
    if all.is_empty() {
        return None;
    }
    let field = all[rng.index(all.len())].clone();
    let get = |f: &Field| {
        let mut word = [0; 8];
        word[..f.len].copy_from_slice(&node.content[f.at..f.at + f.len]);
        u64::from_le_bytes(word)
    };
    let old = get(&field);
    let other = get(&all[rng.index(all.len())]);
    let new = wrong(rng, old, field.len as u32 * 8, other);
    if new == old {
        return None;
    }
    let mut content = node.content.clone();
    content[field.at..field.at + field.len].copy_from_slice(&new.to_le_bytes()[..field.len]);
    let description =
        format!("{:?}: {} at {:#x}: {old:#x} -> {new:#x}", node.position, field.name, field.at);
    forge.change(id, content);
    Some(description)
}
