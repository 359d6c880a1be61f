//! Delegated permissions (chapter 04 §13).
//!
//! # Theory
//! A directory's table of permissions has an entry for each holder of permissions and reach:
//! the dataset itself or its descendants. The entry leads to an object that has the names of
//! permissions, and to another one with the names of sets of permissions. A set is itself an
//! entry, and is expanded when a permission is looked up, so that its changes count at once.
//!
//! What a user may do to a dataset is the union of local entries of its directory, descendant
//! entries of the directories above, and, for a snapshot, both kinds of entries of its
//! dataset. Nothing is ever denied explicitly.
//!
//! # Invariants
//! * No list of permissions is empty: the last permission takes its entry and object along.
//! * Evaluation only reads, and ends on any image: a set is expanded once, and the lists read
//!   have [`NAMES_MAX`] names together.
//! * [`check`] precedes every edit, so that a damaged table is refused, and not changed.

use std::collections::{BTreeMap, BTreeSet};

use base::{Error, ErrorKind, ObjectId, Result};
use ondisk::ObjType;

use super::{MosRead, SyncCx, create, rename};

/// Type of the tables and lists.
const PERMISSIONS: ObjType = ObjType(32);
/// Bytes of a set's name, `@` and NUL included.
const SET_NAME_MAX: usize = 64;
/// Bytes of a permission's name.
const NAME_MAX: usize = 255;
/// Names in all lists that one evaluation or listing reads.
pub const NAMES_MAX: usize = 1 << 18;

/// Who holds permissions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grantee {
    /// A user.
    User(u64),
    /// A group's members.
    Group(u64),
    /// All users.
    Everyone,
    /// The user who creates a dataset below, for that dataset.
    CreateTime,
    /// A named set; the name begins with `@`.
    Set(String),
}

/// The datasets that an entry is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// The dataset that has the entry.
    Local,
    /// Those below it.
    Descendent,
    /// Sets and create-time permissions have no reach of their own.
    Unspecified,
}

/// The permissions of a holder at one directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelegatedEntry {
    /// Who holds them.
    pub holder: Grantee,
    /// For which datasets.
    pub reach: Reach,
    /// Names of permissions, and of sets, which begin with `@`.
    pub permissions: BTreeSet<String>,
}

/// A user whose permissions are evaluated.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// User id.
    pub uid: u64,
    /// All groups.
    pub groups: &'a [u64],
}

/// The dataset whose permissions are evaluated, relative to a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantPlace {
    /// The directory's file system or volume.
    Dataset,
    /// A snapshot or bookmark of it.
    Snapshot,
    /// Any dataset below.
    Below,
    /// A dataset below that the user creates.
    New,
}

/// A table's key: holder and reach, and whether the list has sets.
pub fn key(holder: &Grantee, reach: Reach, sets: bool) -> String {
    let (letter, id) = match holder {
        Grantee::User(id) => ('u', id.to_string()),
        Grantee::Group(id) => ('g', id.to_string()),
        Grantee::Everyone => ('e', String::new()),
        Grantee::CreateTime => ('c', String::new()),
        Grantee::Set(name) => ('s', name.clone()),
    };
    let letter = if sets { letter.to_ascii_uppercase() } else { letter };
    let reach = match reach {
        Reach::Local => 'l',
        Reach::Descendent => 'd',
        Reach::Unspecified => '-',
    };
    format!("{letter}{reach}${id}")
}

/// Grantee and reach of a key; `None` for keys of another form.
fn parse(key: &str) -> Option<(Grantee, Reach)> {
    let mut chars = key.chars();
    let (letter, reach, dollar) = (chars.next()?, chars.next()?, chars.next()?);
    let id = chars.as_str();
    let reach = match reach {
        'l' => Reach::Local,
        'd' => Reach::Descendent,
        '-' => Reach::Unspecified,
        _ => return None,
    };
    let holder = match letter.to_ascii_lowercase() {
        'u' => Grantee::User(id.parse().ok()?),
        'g' => Grantee::Group(id.parse().ok()?),
        'e' if id.is_empty() => Grantee::Everyone,
        'c' if id.is_empty() => Grantee::CreateTime,
        's' if id.starts_with('@') => Grantee::Set(id.to_owned()),
        _ => return None,
    };
    let unspecified = matches!(holder, Grantee::CreateTime | Grantee::Set(_));
    (dollar == '$' && unspecified == (reach == Reach::Unspecified)).then_some((holder, reach))
}

/// Checks the name of a set.
///
/// # Errors
/// `Invalid`, `NameTooLong`.
pub fn check_set_name(name: &str) -> Result<()> {
    let bad = || Error::invalid("invalid permission set name");
    let rest = name.strip_prefix('@').ok_or_else(bad)?;
    if name.len() >= SET_NAME_MAX {
        return Err(Error::new(ErrorKind::NameTooLong, "invalid permission set name"));
    }
    create::check_component(rest).map_err(|_| bad())
}

fn check_permission(name: &str) -> Result<()> {
    if name.starts_with('@') {
        return check_set_name(name);
    }
    if name.is_empty() || name.len() > NAME_MAX || name.contains('\0') {
        return Err(Error::invalid("invalid permission"));
    }
    Ok(())
}

/// Reads lists, up to [`NAMES_MAX`] names.
struct Lists<'a> {
    mos: &'a dyn MosRead,
    left: usize,
}

impl Lists<'_> {
    fn new(mos: &dyn MosRead) -> Lists<'_> {
        Lists { mos, left: NAMES_MAX }
    }

    fn numbers(&mut self, zap: u64) -> Result<Vec<(String, u64)>> {
        let all = self.mos.numbers(zap)?;
        let over = || Error::limit("too many delegated permissions").in_object(ObjectId(zap));
        self.left = self.left.checked_sub(all.len()).ok_or_else(over)?;
        Ok(all)
    }

    /// The entries of a directory, by holder and reach. Keys of another form are left out.
    fn of(&mut self, dir: u64) -> Result<BTreeMap<(Grantee, Reach), BTreeSet<String>>> {
        let table = self.mos.dir(dir)?.deleg_zapobj;
        let mut out: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
        for (key, list) in self.numbers(table)? {
            let Some(whose) = parse(&key) else { continue };
            let names = self.numbers(list)?.into_iter().map(|(name, _)| name);
            out.entry(whose).or_default().extend(names);
        }
        Ok(out)
    }
}

/// The permissions that a directory's table has, by holder and reach.
///
/// # Errors
/// Those of reading; `Limit`.
pub fn entries(mos: &dyn MosRead, dir: u64) -> Result<Vec<DelegatedEntry>> {
    let all = Lists::new(mos).of(dir)?.into_iter();
    let entry = |((holder, reach), permissions)| DelegatedEntry { holder, reach, permissions };
    Ok(all.map(entry).collect())
}

/// All that a user may do at a place: names of permissions, and of the sets that they came
/// from.
///
/// # Errors
/// Those of reading; `Corrupt`; `Limit`.
pub fn effective(
    mos: &dyn MosRead,
    dir: u64,
    place: GrantPlace,
    who: Subject<'_>,
) -> Result<BTreeSet<String>> {
    let mut lists = Lists::new(mos);
    let chain = rename::ancestors(mos, dir)?;
    let tables = chain.iter().map(|at| lists.of(*at)).collect::<Result<Vec<_>>>()?;
    let mut out = BTreeSet::new();
    for (depth, table) in tables.iter().enumerate() {
        let counts = |(holder, reach): &(Grantee, Reach)| {
            let is_users = match holder {
                Grantee::User(id) => *id == who.uid,
                Grantee::Group(id) => who.groups.contains(id),
                Grantee::Everyone => true,
                Grantee::CreateTime => return place == GrantPlace::New,
                Grantee::Set(_) => return false,
            };
            let reaches = match reach {
                Reach::Local => {
                    depth == 0 && matches!(place, GrantPlace::Dataset | GrantPlace::Snapshot)
                }
                Reach::Descendent => depth > 0 || place != GrantPlace::Dataset,
                Reach::Unspecified => false,
            };
            is_users && reaches
        };
        let names = table.iter().filter(|(whose, _)| counts(whose)).flat_map(|(_, names)| names);
        expand(names.cloned().collect(), tables.get(depth..).unwrap_or_default(), &mut out);
    }
    Ok(out)
}

/// Adds permissions, and those of the sets among them, which directories from here up define.
fn expand(
    mut todo: Vec<String>,
    tables: &[BTreeMap<(Grantee, Reach), BTreeSet<String>>],
    out: &mut BTreeSet<String>,
) {
    let mut seen = BTreeSet::new();
    while let Some(name) = todo.pop() {
        if name.starts_with('@') && seen.insert(name.clone()) {
            let set = (Grantee::Set(name.clone()), Reach::Unspecified);
            let defined = tables.iter().filter_map(|t| t.get(&set)).flatten();
            todo.extend(defined.filter(|n| !seen.contains(*n)).cloned());
        }
        out.insert(name);
    }
}

/// The permissions of a set that is used at a directory, those of sets in it included; only
/// the name if no set is called so.
///
/// # Errors
/// As [`effective`].
pub fn set_members(mos: &dyn MosRead, dir: u64, name: &str) -> Result<BTreeSet<String>> {
    let mut lists = Lists::new(mos);
    let chain = rename::ancestors(mos, dir)?;
    let tables = chain.iter().map(|at| lists.of(*at)).collect::<Result<Vec<_>>>()?;
    let mut out = BTreeSet::new();
    expand(vec![name.to_owned()], &tables, &mut out);
    Ok(out)
}

/// Whether a directory's permissions can be changed, and the names are valid.
///
/// # Errors
/// `Invalid`, `NameTooLong`; `Corrupt` for a damaged table; those of reading.
pub fn check<'n>(
    mos: &dyn MosRead,
    dir: u64,
    holder: &Grantee,
    names: impl IntoIterator<Item = &'n String>,
) -> Result<()> {
    if let Grantee::Set(name) = holder {
        check_set_name(name)?;
    }
    names.into_iter().try_for_each(|name| check_permission(name))?;
    let table = mos.dir(dir)?.deleg_zapobj;
    if table == 0 {
        return Ok(());
    }
    let damaged = |object| {
        Error::corrupt("the table of delegated permissions is damaged").in_object(ObjectId(object))
    };
    let is_zap = |object| Ok::<_, Error>(mos.info(object)?.object_type == PERMISSIONS);
    if !is_zap(table)? {
        return Err(damaged(table));
    }
    let mut seen = BTreeSet::from([table]);
    for (_, list) in Lists::new(mos).numbers(table)? {
        if !seen.insert(list) || !is_zap(list)? {
            return Err(damaged(list));
        }
    }
    Ok(())
}

/// Sets and permissions among names.
fn split(names: &BTreeSet<String>) -> [(bool, Vec<&String>); 2] {
    let (sets, own) = names.iter().partition(|name| name.starts_with('@'));
    [(false, own), (true, sets)]
}

/// Adds permissions to a directory's table; [`check`] must have accepted them.
///
/// # Errors
/// Those of the store.
pub fn allow(cx: &SyncCx<'_>, dir: u64, entry: &DelegatedEntry) -> Result<()> {
    for (sets, names) in split(&entry.permissions) {
        if names.is_empty() {
            continue;
        }
        let mut table = cx.dir(dir)?.deleg_zapobj;
        if table == 0 {
            table = cx.new_zap(PERMISSIONS, 0)?;
            cx.edit_dir(dir, |d| d.deleg_zapobj = table)?;
        }
        let key = key(&entry.holder, entry.reach, sets);
        let list = match cx.read().number(table, &key)? {
            Some(list) => list,
            None => {
                let list = cx.new_zap(PERMISSIONS, 0)?;
                cx.put_number(table, &key, list)?;
                list
            }
        };
        names.into_iter().try_for_each(|name| cx.put_number(list, name, 0))?;
    }
    Ok(())
}

/// Removes permissions, or with `None` all that the holder has with this reach. What is not
/// there is no error.
///
/// # Errors
/// Those of the store.
pub fn unallow(
    cx: &SyncCx<'_>,
    dir: u64,
    (holder, reach): (&Grantee, Reach),
    permissions: Option<&BTreeSet<String>>,
) -> Result<()> {
    let table = cx.dir(dir)?.deleg_zapobj;
    if table == 0 {
        return Ok(());
    }
    for sets in [false, true] {
        let key = key(holder, reach, sets);
        let Some(list) = cx.read().number(table, &key)? else { continue };
        if let Some(names) = permissions {
            for name in names.iter().filter(|name| name.starts_with('@') == sets) {
                cx.remove_if_present(list, name)?;
            }
            if !cx.read().zap_entries(list)?.is_empty() {
                continue;
            }
        }
        cx.mos.free_object(list)?;
        cx.mos.zap_remove(table, key.as_bytes())?;
    }
    Ok(())
}

/// Gives the user who created the dataset of `dir` the create-time permissions of the
/// directories above.
///
/// # Errors
/// Those of the store.
pub fn created(cx: &SyncCx<'_>, dir: u64, uid: u64) -> Result<()> {
    let above = rename::ancestors(cx.read(), dir)?;
    let create_time = (Grantee::CreateTime, Reach::Unspecified);
    let mut permissions = BTreeSet::new();
    let mut lists = Lists::new(cx.read());
    for at in above.into_iter().skip(1) {
        permissions.extend(lists.of(at)?.remove(&create_time).unwrap_or_default());
    }
    if permissions.is_empty() {
        return Ok(());
    }
    allow(cx, dir, &DelegatedEntry { holder: Grantee::User(uid), reach: Reach::Local, permissions })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_chapters_form() {
        let all = [
            ("ul$1000", Grantee::User(1000), Reach::Local),
            ("ud$1000", Grantee::User(1000), Reach::Descendent),
            ("gd$5", Grantee::Group(5), Reach::Descendent),
            ("el$", Grantee::Everyone, Reach::Local),
            ("c-$", Grantee::CreateTime, Reach::Unspecified),
            ("s-$@backup", Grantee::Set("@backup".into()), Reach::Unspecified),
        ];
        for (text, holder, reach) in all {
            assert_eq!(key(&holder, reach, false), text);
            assert_eq!(parse(text), Some((holder.clone(), reach)));
            let upper = key(&holder, reach, true);
            assert_eq!(upper[..1], text[..1].to_uppercase());
            assert_eq!(upper[1..], text[1..]);
            assert_eq!(parse(&upper), Some((holder, reach)));
        }
        for odd in ["", "ul", "ul1000", "ux$1", "ul$", "ul$x", "el$1", "cl$", "s-$x", "u-$1", "xl$"]
        {
            assert_eq!(parse(odd), None, "{odd}");
        }
    }

    #[test]
    fn names_of_sets() {
        assert!(check_set_name("@mine").is_ok());
        assert!(check_set_name(&format!("@{}", "a".repeat(62))).is_ok());
        assert!(check_set_name(&format!("@{}", "a".repeat(63))).is_err());
        for bad in ["mine", "@", "@a/b", "@a@b"] {
            assert!(check_set_name(bad).is_err(), "{bad}");
        }
    }

    /// Sets that contain each other end the expansion.
    #[test]
    fn sets_are_expanded_once() {
        let set = |name: &str| (Grantee::Set(name.to_owned()), Reach::Unspecified);
        let names = |list: &[&str]| list.iter().map(|n| (*n).to_owned()).collect::<BTreeSet<_>>();
        let low = BTreeMap::from([(set("@a"), names(&["@b", "send"]))]);
        let high = BTreeMap::from([
            (set("@a"), names(&["hold"])),
            (set("@b"), names(&["@a", "@none", "clone"])),
        ]);
        let mut out = BTreeSet::new();
        expand(vec!["@a".into(), "mount".into()], &[low.clone(), high.clone()], &mut out);
        assert_eq!(out, names(&["@a", "@b", "@none", "clone", "hold", "mount", "send"]));
        // Above, only what is defined there counts.
        let mut out = BTreeSet::new();
        expand(vec!["@a".into()], &[high], &mut out);
        assert_eq!(out, names(&["@a", "hold"]));
    }
}
