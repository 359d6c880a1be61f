//! The header of a package: which datasets and snapshots follow (chapter 07 §11.1).

use base::{Error, Result};
use nvlist::{NvList, Value};

/// What a package's header says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PackageHeader {
    /// Short name of the snapshot to which it is incremental.
    pub from_snap: Option<String>,
    /// Short name of the last snapshot.
    pub to_snap: String,
    /// Descendants are included (`-R`).
    pub recursive: bool,
    /// The substreams are raw.
    pub raw: bool,
    /// The datasets, with the guids of their heads.
    pub datasets: Vec<(u64, PackageDataset)>,
}

/// A dataset in a package's header.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PackageDataset {
    /// Its name on the sender.
    pub name: String,
    /// Guid of the parent's snapshot that corresponds, or 0.
    pub parent_from_snap: u64,
    /// Guid of the snapshot that it is a clone of.
    pub origin: Option<u64>,
    /// Its properties, strings and integers; absent if none are sent.
    pub props: Option<NvList>,
    /// It is encrypted with a key of its own.
    pub is_encryption_root: bool,
    /// Its snapshots in the package, by short name, with guids.
    pub snaps: Vec<(String, u64)>,
    /// Properties of these, in the same order.
    pub snap_props: Vec<NvList>,
    /// User holds of these; absent without `-h`.
    pub snap_holds: Option<Vec<NvList>>,
}

fn missing(what: &str) -> Error {
    Error::corrupt(format!("the stream's list of datasets lacks '{what}'"))
}

impl PackageHeader {
    /// The payload of the BEGIN.
    pub fn to_list(&self) -> NvList {
        let mut list = NvList::new();
        if let Some(name) = &self.from_snap {
            list.add_str("fromsnap", name);
        }
        list.add_str("tosnap", &self.to_snap);
        if !self.recursive {
            list.add_flag("not_recursive");
        }
        if self.raw {
            list.add_flag("raw");
        }
        let mut datasets = NvList::new();
        for (guid, dataset) in &self.datasets {
            datasets.add_list(&format!("{guid:#x}"), dataset.to_list());
        }
        list.add_list("fss", datasets);
        list
    }

    /// The dataset that a snapshot, by its full name on the sender, belongs to.
    pub fn dataset_of(&self, snapshot: &str) -> Option<&PackageDataset> {
        let name = snapshot.split('@').next()?;
        self.datasets.iter().map(|(_, of)| of).find(|of| of.name == name)
    }

    /// The header in a BEGIN's payload.
    ///
    /// # Errors
    /// `Corrupt`, `Limit`.
    pub fn parse(payload: &[u8]) -> Result<PackageHeader> {
        let list = NvList::unpack(payload)?;
        let mut datasets = Vec::new();
        for (key, value) in list.need_list("fss")?.iter() {
            let hex = key.to_str().and_then(|key| key.strip_prefix("0x"));
            let guid = hex.and_then(|hex| u64::from_str_radix(hex, 16).ok());
            match (guid, value) {
                (Some(guid), Value::List(of)) => datasets.push((guid, PackageDataset::parse(of)?)),
                _ => return Err(missing("guid")),
            }
        }
        Ok(PackageHeader {
            from_snap: list.str("fromsnap").map(str::to_owned),
            to_snap: list.need_str("tosnap")?.to_owned(),
            recursive: !list.flag("not_recursive"),
            raw: list.flag("raw"),
            datasets,
        })
    }
}

impl PackageDataset {
    fn to_list(&self) -> NvList {
        let mut list = NvList::new();
        list.add_str("name", &self.name).add_u64("parentfromsnap", self.parent_from_snap);
        if let Some(guid) = self.origin {
            list.add_u64("origin", guid);
        }
        if let Some(props) = &self.props {
            list.add_list("props", props.clone());
        }
        if self.is_encryption_root {
            list.add_flag("is_encroot");
        }
        let (mut snaps, mut props, mut holds) = (NvList::new(), NvList::new(), NvList::new());
        for (i, (name, guid)) in self.snaps.iter().enumerate() {
            snaps.add_u64(name, *guid);
            props.add_list(name, self.snap_props.get(i).cloned().unwrap_or_default());
            let of = self.snap_holds.as_ref().and_then(|holds| holds.get(i));
            if let Some(of) = of.filter(|of| !of.is_empty()) {
                holds.add_list(name, of.clone());
            }
        }
        list.add_list("snaps", snaps).add_list("snapprops", props);
        if self.snap_holds.is_some() {
            list.add_list("snapholds", holds);
        }
        list
    }

    fn parse(list: &NvList) -> Result<PackageDataset> {
        let mut of = PackageDataset {
            name: list.need_str("name")?.to_owned(),
            parent_from_snap: list.u64("parentfromsnap").unwrap_or(0),
            origin: list.u64("origin"),
            props: list.list("props").cloned(),
            is_encryption_root: list.flag("is_encroot"),
            snap_holds: list.list("snapholds").map(|_| Vec::new()),
            ..PackageDataset::default()
        };
        for (name, value) in list.need_list("snaps")?.iter() {
            let (Some(name), Value::Uint64(guid)) = (name.to_str(), value) else {
                return Err(missing("snaps"));
            };
            let nested = |key| list.list(key).and_then(|all| all.list(name)).cloned();
            of.snap_props.push(nested("snapprops").unwrap_or_default());
            if let Some(holds) = &mut of.snap_holds {
                holds.push(nested("snapholds").unwrap_or_default());
            }
            of.snaps.push((name.to_owned(), *guid));
        }
        Ok(of)
    }
}
