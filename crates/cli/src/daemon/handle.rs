//! Requests to replies.

use std::collections::BTreeSet;

use base::{Error, ErrorKind, Result};
use cenote::tune;

use super::state::{Listener, State};
use super::{change, convert, datasets as changes, past};
use crate::engine::{DataError, Dataset};
use crate::proto::{
    BATCH_MAX, DaemonStatus, Data, Kind, ListArgs, ROWS_MAX, Reply, Request, Row, Stat,
    TunableInfo, Value, WhatIf,
};

/// Who hears rows as well.
pub(crate) trait RowListener: Listener {
    /// Some rows are ready.
    fn rows(&mut self, rows: Vec<Row>);
}

/// Serves one request; the reply is the last thing the client gets.
pub(crate) fn handle(state: &State, request: &Request, to: &mut dyn RowListener) -> Reply {
    match serve(state, request, to) {
        Ok(reply) => reply,
        Err(e) => Reply::Failed(e.message().to_owned()),
    }
}

fn serve(state: &State, request: &Request, to: &mut dyn RowListener) -> Result<Reply> {
    match request {
        Request::Status => Ok(Reply::Status(DaemonStatus {
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
            let (pools, problems) = state.discover(search).map_err(whole)?;
            Ok(Reply::Found(pools, problems))
        }
        Request::Import(args) => {
            let (name, told) = state.import(args, to)?;
            Ok(Reply::Imported(name, told))
        }
        Request::Export { name, force } => state.export(name, *force, to).map(|()| Reply::Done),
        Request::PoolNames => Ok(Reply::Names(state.names())),
        Request::PoolStatus { name, verbose } => {
            let pool = pool(state, name)?;
            let status = pool.status().map_err(whole)?;
            let mut reply = convert::pool(&status);
            if *verbose && status.error_count > 0 {
                reply.errors = damaged(state, &pool)?;
            }
            reply.removal = past::removal(&pool, &status.root).map_err(whole)?;
            reply.expand = past::expansion(&pool, &status.root).map_err(whole)?;
            Ok(Reply::Pool(Box::new(reply)))
        }
        Request::PoolProps { name, props } => pool_props(state, name, props.as_deref()),
        Request::Datasets(args) => {
            datasets(state, args, to)?;
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
            Ok(Reply::WhatIf(state.engine().what_if().into_iter().map(WhatIf::from).collect()))
        }
        Request::Create(args) => change::create(state, args, to),
        Request::Add(args) => change::add(state, args, to),
        Request::Change { pool, change, command } => {
            change::change(state, pool, change, command, to)
        }
        Request::ChangeDatasets(asked) => match changes::change(state, asked, to) {
            // Each that failed was told already.
            Err(e) if e.message().is_empty() => Ok(Reply::Done),
            other => other,
        },
        Request::LabelClear { path, force } => change::label_clear(state, path, *force),
        Request::History { name, from } => {
            change::history(&pool(state, name)?, *from).map_err(whole)
        }
        Request::Mounts => Ok(Reply::Mounts(state.mounts())),
        Request::Mount(args) => state.mount(args, to).map(|()| Reply::Done),
        Request::Unmount(a) => {
            match state.unmount(a.target.as_deref(), a.force, to) {
                // Each mount that stayed was told already.
                Err(e) if e.message().is_empty() => Ok(Reply::Done),
                other => other.map(|()| Reply::Done),
            }
        }
    }
}

fn kstats(state: &State, paths: &[String]) -> Result<Reply> {
    if paths.len() > BATCH_MAX {
        return Err(Error::limit(format!("more than {BATCH_MAX} kstats in one request")));
    }
    let registry = state.engine().kstats();
    let read = paths.iter().filter_map(|p| registry.get(p).map(|k| Stat::new(p.clone(), k)));
    Ok(Reply::Kstats(read.collect()))
}

fn tunables(state: &State, names: &[String]) -> Result<Reply> {
    let info = |t| TunableInfo::new(t, state.engine());
    if names.is_empty() {
        return Ok(Reply::Tunables(tune::TUNABLES.iter().map(info).collect()));
    }
    let found = names.iter().map(|name| tune::find(name).map(info));
    Ok(Reply::Tunables(found.collect::<Result<_>>()?))
}

/// The error as one line, place and cause included.
fn whole(e: Error) -> Error {
    Error::new(e.kind(), e.to_string())
}

fn pool(state: &State, name: &str) -> Result<std::sync::Arc<crate::engine::Pool>> {
    let missing = || Error::not_found(format!("cannot open '{name}': no such pool"));
    state.pool(name).ok_or_else(missing)
}

/// The lines of `zpool status -v` about damaged files (chapter 09 §4.3).
fn damaged(state: &State, pool: &crate::engine::Pool) -> Result<Vec<String>> {
    let mounts = state.mounts();
    let errors = pool.data_errors().map_err(whole)?;
    let mountpoint = |e: &DataError| {
        let name = e.dataset.as_deref().filter(|_| e.mountable)?;
        let mount = mounts.iter().find(|m| m.dataset == name)?;
        Some(mount.mountpoint.clone())
    };
    Ok(errors.iter().map(|e| convert::data_error(e, mountpoint(e).as_deref())).collect())
}

fn pool_props(state: &State, name: &str, props: Option<&[String]>) -> Result<Reply> {
    let pool = pool(state, name)?;
    let all = match props {
        None => pool.props().map_err(whole)?,
        Some(names) => {
            let mut out = Vec::new();
            for name in names {
                if let Some(value) = pool.prop(name).map_err(whole)? {
                    out.push((name.clone(), value));
                }
            }
            out
        }
    };
    Ok(Reply::Props(all.iter().map(|(n, v)| (n.clone(), v.into())).collect()))
}

struct Lister<'a> {
    state: &'a State,
    args: &'a ListArgs,
    seen: BTreeSet<String>,
    rows: Vec<Row>,
}

fn datasets(state: &State, args: &ListArgs, to: &mut dyn RowListener) -> Result<()> {
    let mut lister = Lister { state, args, seen: BTreeSet::new(), rows: Vec::new() };
    if args.roots.is_empty() {
        for name in state.names() {
            if let Some(pool) = state.pool(&name) {
                match pool.root() {
                    Ok(root) => lister.walk(&root, false, to),
                    Err(e) => to.problem(format!("cannot open '{name}': {e}")),
                }
            }
        }
    }
    for root in &args.roots {
        match state.open(root) {
            Ok((_, dataset)) => lister.walk(&dataset, args.named_any_kind, to),
            Err(e) => to.problem(e.message().to_owned()),
        }
    }
    to.rows(std::mem::take(&mut lister.rows));
    Ok(())
}

impl Lister<'_> {
    fn wants(&self, kind: Kind) -> bool {
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
            if !deeper || matches!(kind, Kind::Snapshot | Kind::Bookmark) {
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
            if self.wants(Kind::Snapshot) {
                below(dataset.snapshots(), "snapshots", to);
            }
            if self.wants(Kind::Bookmark) {
                below(dataset.bookmarks(), "bookmarks", to);
            }
        }
    }

    fn add(&mut self, dataset: &Dataset, to: &mut dyn RowListener) {
        if !self.seen.insert(dataset.name().to_owned()) {
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

    fn row(&self, dataset: &Dataset) -> Result<Row> {
        let mut props: Vec<(String, Value)> = match &self.args.props {
            None => dataset.props()?.iter().map(|(n, v)| (n.clone(), v.into())).collect(),
            Some(names) => {
                let mut out = Vec::new();
                for name in names.iter().filter(|n| *n != "name") {
                    if let Some(value) = dataset.prop(name)? {
                        out.push((name.clone(), (&value).into()));
                    }
                }
                out
            }
        };
        // Only the daemon knows what is mounted.
        if let Some((_, value)) = props.iter_mut().find(|(n, _)| n == "mounted") {
            let mounted = self.state.is_mounted(dataset.name());
            *value = Value::fact(Data::Num(mounted.into()));
        }
        let createtxg = dataset.createtxg();
        let kind = convert::kind(dataset.kind());
        Ok(Row { name: dataset.name().to_owned(), kind, createtxg, props })
    }
}
