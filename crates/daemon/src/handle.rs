//! Dispatch of requests: from a request to its reply.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use base::rt::Mutex;
use base::{Error, ErrorKind, Result};
use cenote::tune;
use cenote::{DataError, Dataset, MoveStatus, MoveWork, Pool};
use proto::{
    BATCH_MAX, Change, DaemonStatus, DatasetRow, DatasetType, EVENTS_PAGE, EventInfo, EventsPage,
    ListArgs, PropertyEntry, PropertyValue, ROWS_MAX, ReceiveArgs, Reply, Request, SpaceMap, Stat,
    TunableInfo, WhatIf,
};

use super::access::{self, Caller};
use super::inspect::{LISTING_TIMEOUT, NAMED_POOL_TIMEOUT};
use super::receiving::ClientStream;
use super::state::{DaemonState, Listener, pool_name};
use super::watched::Relay;
use super::{
    change, convert, datasets as changes, delegation, diff, holds, receiving, sending, space,
    vdev_history,
};

/// Receives rows as well.
pub(crate) trait RowListener: Listener {
    /// Some rows are ready.
    fn rows(&mut self, rows: Vec<DatasetRow>);
    /// The next bytes of a stream.
    fn bytes(&mut self, bytes: Vec<u8>);
    /// A line for the command's standard output.
    fn line(&mut self, line: String);
    /// The client is to send the next bytes of its input.
    fn more_input(&mut self);
}

/// Serves one request; the reply is the last message to the client.
pub(crate) fn handle(
    state: &Arc<DaemonState>,
    request: &Request,
    by: &Caller,
    to: &mut dyn RowListener,
) -> Reply {
    match serve(state, request, by, to) {
        Ok(reply) => reply,
        Err(e) => Reply::Failed(e.message().to_owned()),
    }
}

/// Serves [`Request::Receive`], whose stream `input` brings.
pub(crate) fn receive(
    state: &Arc<DaemonState>,
    args: &ReceiveArgs,
    input: ClientStream,
    by: &Caller,
    to: &mut Relay,
) -> Reply {
    if let Err(e) = access::check(by, &Request::Receive(Box::new(args.clone()))) {
        return Reply::Failed(e.message().to_owned());
    }
    state.await_start(Duration::from_secs(60), to);
    match receiving::receive(state, args, input, by, to) {
        Ok(reply) => reply,
        Err(e) => Reply::Failed(e.message().to_owned()),
    }
}

/// How long a request waits for pools that the daemon is importing at its start.
fn startup_wait(request: &Request) -> Duration {
    match request {
        // These concern the daemon itself, or must end it in any state.
        Request::Status
        | Request::Stop { .. }
        | Request::Export { force: true, .. }
        | Request::Change {
            change: Change::Destroy { force: true } | Change::Clear(_) | Change::Online { .. },
            ..
        }
        | Request::Kstats { .. }
        | Request::KstatNames
        | Request::Tunables { .. }
        | Request::Tune { .. }
        | Request::WhatIf
        | Request::Events { .. }
        | Request::ClearEvents => Duration::ZERO,
        Request::Discover(_)
        | Request::PoolNames
        | Request::PoolStatus { .. }
        | Request::DedupReport { .. }
        | Request::PoolProps { .. }
        | Request::SpaceMap { .. }
        | Request::Mounts => Duration::from_secs(10),
        _ => Duration::from_secs(60),
    }
}

fn serve(
    state: &Arc<DaemonState>,
    request: &Request,
    by: &Caller,
    to: &mut dyn RowListener,
) -> Result<Reply> {
    access::check(by, request)?;
    state.await_start(startup_wait(request), to);
    match request {
        Request::Status => Ok(Reply::Status(DaemonStatus {
            nbd: state.nbd().0,
            nbd_clients: state.nbd().1,
            pid: std::process::id(),
            uptime: state.uptime(),
            pools: state.names(),
            mounts: state.mounts().len() as u64,
            volumes: state.volumes(),
            kstats: state.kstat_dir(),
        })),
        Request::Stop { force } => {
            state.close_all(*force, true, to)?;
            state.set_stopping();
            Ok(Reply::Done)
        }
        Request::Discover(search) => {
            let (pools, problems) = state.discover(search).map_err(one_line)?;
            Ok(Reply::Found(pools, problems))
        }
        Request::Import(args) => {
            let (name, lines) = state.import(args, to)?;
            Ok(Reply::Imported(name, lines))
        }
        Request::Export { name, force } => state.export(name, *force, to).map(|()| Reply::Done),
        Request::PoolNames => Ok(Reply::Names(state.names())),
        Request::PoolStatus { name, verbose } => {
            let mut status = state.status_of(name, *verbose && by.is_owner(), to)?;
            if *verbose && !by.is_owner() && status.error_count > 0 {
                let text = "List of errors unavailable: permission denied";
                status.errors = vec![text.to_owned()];
            }
            Ok(Reply::Pool(Box::new(status)))
        }
        Request::DedupReport { name } => {
            let slot = state.registry().find(name)?;
            let looked =
                state.inspect(&slot, NAMED_POOL_TIMEOUT, to, move |_, pool, _| pool.dedup_report());
            Ok(Reply::Dedup(Box::new(convert::dedup(&looked?.map_err(one_line)?))))
        }
        Request::PoolProps { name, props } => {
            state.props_of(name, props.as_deref(), to).map(Reply::Props)
        }
        Request::SpaceMap { name, from } => {
            let (slot, from) = (state.registry().find(name)?, *from);
            let looked = state.inspect(&slot, NAMED_POOL_TIMEOUT, to, move |_, pool, _| {
                pool.space_map().map(|map| SpaceMap::page(map, from))
            });
            Ok(Reply::SpaceMap(Box::new(looked?.map_err(one_line)?)))
        }
        Request::Diff(args) => diff::diff(state, args, by, to),
        Request::Send(args) => sending::send(state, args, by, to),
        // The thread of the connection serves it, because it has the client's input.
        Request::Receive(_) => Err(base::bug!("a stream is received without its input")),
        Request::Datasets(args) => {
            datasets(state, args, by, to)?;
            Ok(Reply::Done)
        }
        Request::KstatNames => Ok(Reply::Names(state.engine().kstats().names())),
        Request::Kstats { paths } => kstats(state, paths),
        Request::Tunables { names } => tunables(state, names),
        Request::Tune { name, value } => {
            let tunable = tune::find(name)?;
            tunable.set(state.engine(), value)?;
            tunables(state, std::slice::from_ref(name))
        }
        Request::WhatIf => {
            let of = |points: Vec<_>| points.into_iter().map(WhatIf::from).collect();
            let [sizes, devices] = state.engine().what_if().map(of);
            Ok(Reply::WhatIf { sizes, devices })
        }
        Request::Create(args) => change::create(state, args, to),
        Request::Add(args) => change::add(state, args, to),
        Request::Change { pool, change, command } => {
            change::change(state, pool, change, command, to)
        }
        Request::ChangeDatasets(change_args) => match changes::change(state, change_args, by, to) {
            // Each failure was reported already.
            Err(e) if e.message().is_empty() => Ok(Reply::Done),
            other => other,
        },
        Request::Holds { snapshots, recursive } => holds::list(state, snapshots, *recursive, to),
        Request::Permissions { dataset } => delegation::show(state, dataset),
        Request::OwnerSpace { dataset, kind, after } => {
            space::of_owners(state, dataset, *kind, *after, by)
        }
        Request::LabelClear { path, force } => change::label_clear(state, path, *force),
        Request::History { name, from } => {
            let (slot, from) = (state.registry().find(name)?, *from);
            let looked = state.inspect(&slot, NAMED_POOL_TIMEOUT, to, move |_, pool, _| {
                change::history(pool, from)
            });
            looked?.map_err(one_line)
        }
        Request::VdevProps { name } => {
            let slot = state.registry().find(name)?;
            let looked = state.inspect(&slot, NAMED_POOL_TIMEOUT, to, move |_, pool, _| {
                pool.vdev_props().map(|all| all.iter().map(|(g, p)| (g.0, p.clone())).collect())
            });
            Ok(Reply::VdevProps(looked?.map_err(one_line)?))
        }
        Request::Events { after, wait_ms } => {
            Ok(Reply::Events(events(state, *after, *wait_ms, to)))
        }
        Request::ClearEvents => Ok(Reply::Count(state.engine().events().clear() as u64)),
        Request::Mounts => Ok(Reply::Mounts(state.mounts())),
        Request::Mount(args) => state.mount(args, to).map(|()| Reply::Done),
        Request::Unmount(a) => {
            access::check_unmount(state, a, by)?;
            match state.unmount(a.target.as_deref(), a.force, to) {
                // Each mount that stayed was reported already.
                Err(e) if e.message().is_empty() => Ok(Reply::Done),
                other => other.map(|()| Reply::Done),
            }
        }
    }
}

fn kstats(state: &DaemonState, paths: &[String]) -> Result<Reply> {
    if paths.len() > BATCH_MAX {
        return Err(Error::limit(format!("more than {BATCH_MAX} kstats in one request")));
    }
    let registry = state.engine().kstats();
    let read = paths.iter().filter_map(|p| registry.get(p).map(|k| Stat::new(p.clone(), k)));
    Ok(Reply::Kstats(read.collect()))
}

/// How long a wait for events takes before it looks whether the client is still there.
const EVENT_WAIT: Duration = Duration::from_millis(250);
/// The longest wait that a client may ask for.
const EVENT_WAIT_MAX: Duration = Duration::from_secs(60);

/// A page of events; waits for the first one as long as the client wants.
fn events(state: &DaemonState, after: u64, wait_ms: u64, to: &mut dyn RowListener) -> EventsPage {
    let until = base::rt::uptime() + Duration::from_millis(wait_ms).min(EVENT_WAIT_MAX);
    let log = state.engine().events();
    let batch = loop {
        let left = until.saturating_sub(base::rt::uptime());
        let batch = log.wait(after, left.min(EVENT_WAIT));
        if !batch.events.is_empty() || left.is_zero() || log.is_closed() || to.is_gone() {
            break batch;
        }
    };
    let more = batch.events.len() > EVENTS_PAGE;
    let events: Vec<EventInfo> =
        batch.events.iter().take(EVENTS_PAGE).map(|e| convert::event(e)).collect();
    let last = match events.last() {
        Some(event) if more => event.eid,
        _ => batch.last,
    };
    EventsPage { events, dropped: batch.dropped, last, more }
}

fn tunables(state: &DaemonState, names: &[String]) -> Result<Reply> {
    let info = |t| TunableInfo::new(t, state.engine());
    if names.is_empty() {
        return Ok(Reply::Tunables(tune::TUNABLES.iter().map(info).collect()));
    }
    let found = names.iter().map(|name| tune::find(name).map(info));
    Ok(Reply::Tunables(found.collect::<Result<_>>()?))
}

/// The error as one line, with location and cause.
fn one_line(e: Error) -> Error {
    Error::new(e.kind(), e.to_string())
}

/// A pool's whole state; with `verbose` its damaged files, too.
///
/// # Errors
/// Those of reading it.
pub(super) fn full_status(
    state: &DaemonState,
    pool: &Arc<Pool>,
    verbose: bool,
) -> Result<proto::Pool> {
    let mut status = pool.status().map_err(one_line)?;
    state.engine().describe_spares(pool, &mut status.aux);
    let mut reply = convert::pool(&status);
    if verbose && status.error_count > 0 {
        reply.errors = damaged(state, pool)?;
    }
    reply.removal = vdev_history::removal(pool, &status.root).map_err(one_line)?;
    reply.expand = vdev_history::expansion(pool, &status.root).map_err(one_line)?;
    let empties = |job: &MoveStatus| {
        matches!(job.record.work, MoveWork::Remove { .. } | MoveWork::Shrink { .. })
    };
    reply.defrag = pool.move_job().filter(|job| !empties(job)).map(convert::defrag);
    Ok(reply)
}

/// The lines of `zpool status -v` about damaged files (chapter 09 §4.3).
fn damaged(state: &DaemonState, pool: &Pool) -> Result<Vec<String>> {
    let mounts = state.mounts();
    let errors = pool.data_errors().map_err(one_line)?;
    let mountpoint = |e: &DataError| {
        let name = e.dataset.as_deref().filter(|_| e.mountable)?;
        let mount = mounts.iter().find(|m| m.dataset == name)?;
        Some(mount.mountpoint.clone())
    };
    Ok(errors.iter().map(|e| convert::data_error(e, mountpoint(e).as_deref())).collect())
}

/// Properties of a pool; `None`: all.
///
/// # Errors
/// Those of reading them.
pub(super) fn pool_props(
    pool: &Pool,
    props: Option<&[String]>,
) -> Result<Vec<(String, PropertyEntry)>> {
    let all = match props {
        None => pool.props().map_err(one_line)?,
        Some(names) => {
            let mut out = Vec::new();
            for name in names {
                if let Some(value) = pool.prop(name).map_err(one_line)? {
                    out.push((name.clone(), value));
                }
            }
            out
        }
    };
    Ok(all.iter().map(|(n, v)| (n.clone(), v.into())).collect())
}

/// One listing. It outlives the request if the part of one pool is abandoned.
struct Lister {
    state: Arc<DaemonState>,
    args: ListArgs,
    /// For whom.
    by: Caller,
    /// Names that were listed.
    seen: Arc<Mutex<BTreeSet<String>>>,
    rows: Vec<DatasetRow>,
}

/// Lists pool by pool: a pool that does not answer does not delay the others.
fn datasets(
    state: &Arc<DaemonState>,
    args: &ListArgs,
    by: &Caller,
    to: &mut dyn RowListener,
) -> Result<()> {
    let seen = Arc::default();
    let part = |root: Option<&str>| {
        let root = root.map(str::to_owned);
        let (args, seen, by) = (args.clone(), Arc::clone(&seen), by.clone());
        move |state: &Arc<DaemonState>, pool: &Arc<Pool>, to: &mut Relay| {
            let mut lister = Lister { state: Arc::clone(state), args, by, seen, rows: Vec::new() };
            match &root {
                None => match pool.root() {
                    Ok(root) => lister.walk(&root, false, to),
                    Err(e) => to.problem(format!("cannot open '{}': {e}", pool.name())),
                },
                Some(name) => match state.open(name) {
                    Ok((_, dataset)) => lister.walk(&dataset, lister.args.named_any_kind, to),
                    Err(e) => to.problem(e.message().to_owned()),
                },
            }
            to.rows(std::mem::take(&mut lister.rows));
        }
    };
    let all = state.registry().all();
    if args.roots.is_empty() {
        let timeout = if all.len() > 1 { LISTING_TIMEOUT } else { NAMED_POOL_TIMEOUT };
        for slot in all {
            // A pool that is being opened has no datasets yet.
            if slot.pool().is_none() {
                continue;
            }
            if let Err(e) = state.inspect(&slot, timeout, to, part(None)) {
                to.problem(e.message().to_owned());
            }
        }
    }
    for root in &args.roots {
        let looked = match state.registry().get(pool_name(root)) {
            Some(slot) => state.inspect(&slot, NAMED_POOL_TIMEOUT, to, part(Some(root))),
            None => {
                let text = format!("cannot open '{root}': dataset does not exist");
                Err(Error::not_found(text))
            }
        };
        if let Err(e) = looked {
            to.problem(e.message().to_owned());
        }
    }
    Ok(())
}

impl Lister {
    fn wants(&self, kind: DatasetType) -> bool {
        self.args.types.contains(&kind)
    }

    fn walk(&mut self, root: &Dataset, named: bool, to: &mut dyn RowListener) {
        let kind = convert::kind(root.kind());
        if named && !self.wants(kind) {
            self.add(root, to);
        }
        let mut todo = vec![(root.clone(), 0u32)];
        while let Some((dataset, depth)) = todo.pop() {
            if to.is_gone() {
                return;
            }
            let kind = convert::kind(dataset.kind());
            if self.wants(kind) {
                self.add(&dataset, to);
            }
            let deeper = self.args.depth.is_none_or(|max| depth < max);
            if !deeper || matches!(kind, DatasetType::Snapshot | DatasetType::Bookmark) {
                continue;
            }
            let mut below =
                |list: Result<Vec<Dataset>>, what: &str, to: &mut dyn RowListener| match list {
                    Ok(list) => todo.extend(list.into_iter().map(|d| (d, depth + 1))),
                    Err(e) => {
                        to.problem(format!("cannot list {what} of '{}': {e}", dataset.name()));
                    }
                };
            below(dataset.children(), "file systems", to);
            if self.wants(DatasetType::Snapshot) {
                below(dataset.snapshots(), "snapshots", to);
            }
            if self.wants(DatasetType::Bookmark) {
                below(dataset.bookmarks(), "bookmarks", to);
            }
        }
    }

    fn add(&mut self, dataset: &Dataset, to: &mut dyn RowListener) {
        if !self.seen.lock().insert(dataset.name().to_owned()) {
            return;
        }
        match self.row(dataset) {
            Ok(row) => self.rows.push(row),
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => to.problem(format!("cannot open '{}': {e}", dataset.name())),
        }
        if self.rows.len() >= ROWS_MAX {
            to.rows(std::mem::take(&mut self.rows));
        }
    }

    fn row(&self, dataset: &Dataset) -> Result<DatasetRow> {
        let mut props: Vec<(String, PropertyEntry)> = match &self.args.props {
            None => dataset.props()?.iter().map(|(n, v)| (n.clone(), v.into())).collect(),
            Some(names) => {
                let mut out = Vec::new();
                for name in names.iter().filter(|n| *n != "name") {
                    if !space::may_see(&self.state, &self.by, dataset, name)? {
                        continue;
                    }
                    if let Some(value) = dataset.prop(name)? {
                        out.push((name.clone(), (&value).into()));
                    }
                }
                out
            }
        };
        // Only the daemon knows which datasets are mounted.
        if let Some((_, value)) = props.iter_mut().find(|(n, _)| n == "mounted") {
            let mounted = self.state.is_mounted(dataset.name());
            *value = PropertyEntry::fact(PropertyValue::Num(mounted.into()));
        }
        let createtxg = dataset.createtxg();
        let kind = convert::kind(dataset.kind());
        Ok(DatasetRow { name: dataset.name().to_owned(), kind, createtxg, props })
    }
}
