//! Requests that create and change pools, from the protocol to the engine.
//!
//! # Invariants
//! * Data from the socket is checked again: names, properties, paths.
//! * A message that is OpenZFS's own is passed on unchanged; others get the prefix of their
//!   action (`cannot create 'tank': ...`) here.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{Error, ErrorKind, Guid, Result};
use cenote::create::{
    AddRequest, CreateRequest, Force, NewKind, NewVdev, PoolSetting, Role, When, check_pool_name,
    check_temporary_name, may_enable, pool_setting, root_fs_settings,
};
use cenote::features::by_name;
use cenote::nvlist::{NvList, Value};
use cenote::{
    AttachMode, AttachRequest, DefragTargets, JobAction, JobKind, NewDevice, Offline, OfflineMode,
    Pool, PruneRequest, RebalanceKind, ScanRequest, SplitRequest,
};
use proto::{
    AddArgs, AttachArgs, AttachDevice, Change, CreateArgs, DEVICES_MAX, DefragArgs, HISTORY_MAX,
    HistoryEvent, HistoryRecord, ImportArgs, PruneArgs, RebalanceArgs, Reply, ScanCommand,
    SearchArgs, ShrinkArgs, SplitArgs, SplitReport, VdevRole,
};

use super::handle::RowListener;
use super::state::{DaemonState, Listener};

/// Properties in one request.
const PROPS_MAX: usize = 1024;

/// Messages that begin with these are complete and are passed on unchanged.
const COMPLETE_PREFIXES: [&str; 3] = ["invalid vdev specification", "cannot ", "invalid "];

/// The message for the user.
fn user_message(action: &str, name: &str, e: &Error) -> Error {
    let plain = e.location() == &base::error::ErrorLocation::default();
    let is_whole = plain && COMPLETE_PREFIXES.iter().any(|w| e.message().starts_with(w));
    let text = match (is_whole, e.kind()) {
        (true, _) => e.message().to_owned(),
        _ => format!("cannot {action} '{name}': {e}"),
    };
    Error::new(e.kind(), text)
}

fn role(class: VdevRole) -> Role {
    match class {
        VdevRole::Normal => Role::Data,
        VdevRole::Dedup => Role::Dedup,
        VdevRole::Special => Role::Special,
        VdevRole::Log => Role::Log,
        VdevRole::Cache => Role::Cache,
        VdevRole::Spare => Role::Spare,
    }
}

fn force(force: proto::Force) -> Force {
    Force { in_use: force.in_use, replication: force.replication, ashift: force.ashift }
}

/// Converts vdev specifications; the grammar has two levels.
fn vdevs(list: &[proto::NewVdev]) -> Result<Vec<NewVdev>> {
    let count: usize = list.iter().map(|v| 1 + v.children.len()).sum();
    if count > DEVICES_MAX {
        return Err(Error::limit("too many devices in one request"));
    }
    let one = |vdev: &proto::NewVdev| {
        let kind = match &vdev.kind {
            proto::NewKind::File(path) => NewKind::File(path.clone()),
            proto::NewKind::Disk(path) => NewKind::Disk(path.clone()),
            proto::NewKind::Mirror => NewKind::Mirror,
            proto::NewKind::Raidz(nparity) => NewKind::Raidz { nparity: *nparity },
            proto::NewKind::Draid(nparity, ndata, nspares) => {
                NewKind::Draid { nparity: *nparity, ndata: *ndata, nspares: *nspares }
            }
        };
        NewVdev::new(kind).for_role(role(vdev.class))
    };
    let with_children = |vdev: &proto::NewVdev| {
        if vdev.children.iter().any(|c| !c.children.is_empty()) {
            return Err(Error::invalid("invalid vdev specification: too deep"));
        }
        Ok(one(vdev).with_children(vdev.children.iter().map(one).collect()))
    };
    list.iter().map(with_children).collect()
}

/// The engine's request for a new pool.
fn create_request(args: &CreateArgs) -> Result<CreateRequest> {
    let invalid = |why: String| Error::invalid(format!("cannot create '{}': {why}", args.name));
    check_pool_name(&args.name).map_err(invalid)?;
    if args.props.len() + args.fs_props.len() + args.features.len() > PROPS_MAX {
        return Err(Error::limit("too many properties in one request"));
    }
    let mut request = CreateRequest {
        force: force(args.force),
        dry_run: args.dry_run,
        features: Vec::new(),
        fs_settings: root_fs_settings(&args.fs_props).map_err(invalid)?,
        command: Some(args.command.clone()).filter(|c| !c.is_empty()),
        ..CreateRequest::new(&args.name, vdevs(&args.vdevs)?)
    };
    for (name, value) in &args.props {
        match pool_setting(name, value, When::Create).map_err(invalid)? {
            PoolSetting::Version(version) => request.version = version,
            PoolSetting::Altroot(root) => request.altroot = Some(root),
            PoolSetting::TemporaryName(name) => {
                check_temporary_name(&name).map_err(invalid)?;
                request.temporary_name = Some(name);
            }
            // There is no cache file, which is what "none" means.
            PoolSetting::Cachefile(_) | PoolSetting::NoEffect(_) => {}
            PoolSetting::Feature(..) => {
                return Err(invalid("features are named apart".to_owned()));
            }
            setting => request.settings.push(setting),
        }
    }
    for name in &args.features {
        let feature = by_name(name).filter(|f| may_enable(f) && request.version == 5000);
        let unknown = || invalid(format!("feature '{name}' unsupported by kernel"));
        request.features.push(feature.ok_or_else(unknown)?);
    }
    Ok(request)
}

/// `zpool create`.
///
/// # Errors
/// The whole message for the user.
pub(super) fn create(
    state: &Arc<DaemonState>,
    args: &CreateArgs,
    to: &mut dyn RowListener,
) -> Result<Reply> {
    let request = create_request(args)?;
    let fail = |e: Error| user_message("create", &args.name, &e);
    let paths = leaf_paths(&request.vdevs);
    state.create(request, paths, to).map_err(fail)?;
    Ok(Reply::Done)
}

fn leaf_paths(vdevs: &[NewVdev]) -> Vec<PathBuf> {
    vdevs.iter().flat_map(NewVdev::paths).map(Path::to_owned).collect()
}

/// `zpool add`.
///
/// # Errors
/// The whole message for the user.
pub(super) fn add(state: &DaemonState, args: &AddArgs, to: &mut dyn Listener) -> Result<Reply> {
    let request = AddRequest {
        vdevs: vdevs(&args.vdevs)?,
        force: force(args.force),
        dry_run: args.dry_run,
        ashift: args.ashift,
        command: Some(args.command.clone()).filter(|c| !c.is_empty()),
    };
    let fail = |e: Error| user_message("add to", &args.name, &e);
    state.add(&args.name, &request, leaf_paths(&request.vdevs), to).map_err(fail)?;
    Ok(Reply::Done)
}

/// The words and the request of a scan command.
fn scan_request(command: ScanCommand) -> (&'static str, ScanRequest) {
    match command {
        ScanCommand::Scrub => ("scrub", ScanRequest::Scrub),
        ScanCommand::ScrubFromLast => ("scrub", ScanRequest::ScrubFromLast),
        ScanCommand::ScrubErrors => ("scrub", ScanRequest::ScrubErrors),
        ScanCommand::Pause => ("pause scrubbing", ScanRequest::Pause),
        ScanCommand::Stop => ("cancel scrubbing", ScanRequest::Stop),
        ScanCommand::Resilver => ("restart resilver on", ScanRequest::Resilver),
    }
}

fn defrag_request(args: &DefragArgs) -> DefragTargets {
    DefragTargets { score: args.target, datasets: args.datasets.clone() }
}

fn rebalance_kind(args: RebalanceArgs) -> RebalanceKind {
    match args {
        RebalanceArgs::Vdevs => RebalanceKind::Vdevs,
        RebalanceArgs::ToSpecial => RebalanceKind::ToSpecial,
        RebalanceArgs::FromSpecial => RebalanceKind::FromSpecial,
    }
}

/// The message about moving blocks of this pool.
fn defrag_failed(action: &str, pool: &str) -> impl Fn(Error) -> Error {
    move |e| Error::new(e.kind(), format!("cannot {action} '{pool}': {}", e.message()))
}

/// Changes an imported pool.
///
/// # Errors
/// The whole message for the user.
pub(super) fn change(
    state: &Arc<DaemonState>,
    name: &str,
    change: &Change,
    command: &str,
    to: &mut dyn RowListener,
) -> Result<Reply> {
    let missing = || Error::not_found(format!("cannot open '{name}': no such pool"));
    let command = Some(command).filter(|c| !c.is_empty());
    let pool = || state.pool(name).ok_or_else(missing);
    match change {
        Change::Destroy { force } => state.destroy(name, *force, command, to)?,
        Change::Sync => pool()?
            .sync()
            .map_err(|e| Error::new(e.kind(), format!("sync '{name}' failed: {e}")))?,
        Change::Reguid(guid) => {
            pool()?.reguid(guid.map(Guid), command).map_err(|e| user_message("reguid", name, &e))?
        }
        Change::Upgrade(version) => {
            let done = pool()?.upgrade(*version, command).map_err(|e| {
                Error::new(e.kind(), format!("cannot upgrade '{name}': {}", e.message()))
            })?;
            let features = done.features.iter().map(|f| f.name().to_owned()).collect();
            return Ok(Reply::Upgraded { from: done.from, to: done.to, features });
        }
        Change::Set(property, value) => {
            let fail =
                |e: Error| Error::new(e.kind(), format!("cannot set property for '{name}': {e}"));
            let setting = pool_setting(property, value, When::Set)
                .map_err(|why| fail(Error::invalid(why)))?;
            pool()?.set(&setting, command).map_err(fail)?;
        }
        Change::SetVdev(vdev, property, value) => {
            pool()?.set_vdev_prop(vdev, property, value, command).map_err(|e| {
                let why = e.message();
                Error::new(e.kind(), format!("cannot set property for '{vdev}' on '{name}': {why}"))
            })?;
        }
        Change::Remove(device) => {
            pool()?.remove_vdev(device, command).map_err(|e| {
                Error::new(e.kind(), format!("cannot remove {device}: {}", e.message()))
            })?;
        }
        Change::EstimateRemoval(device) => {
            let estimate = pool()?.estimate_removal(device).map_err(|e| {
                Error::new(e.kind(), format!("cannot remove {device}: {}", e.message()))
            })?;
            return Ok(Reply::RemovalMemory(estimate.memory));
        }
        Change::Shrink(ShrinkArgs { vdev, size }) => {
            pool()?.shrink_vdev(vdev, *size, command).map_err(|e| {
                Error::new(e.kind(), format!("cannot shrink {vdev}: {}", e.message()))
            })?;
        }
        Change::EstimateShrink(ShrinkArgs { vdev, size }) => {
            let bytes = pool()?.estimate_shrink(vdev, *size).map_err(|e| {
                Error::new(e.kind(), format!("cannot shrink {vdev}: {}", e.message()))
            })?;
            return Ok(Reply::ToMove(bytes));
        }
        Change::CancelShrink => {
            pool()?.cancel_shrink(command).map_err(|e| {
                Error::new(e.kind(), format!("cannot cancel shrinking: {}", e.message()))
            })?;
        }
        Change::CancelRemoval => {
            pool()?.cancel_removal(command).map_err(|e| {
                Error::new(e.kind(), format!("cannot cancel removal: {}", e.message()))
            })?;
        }
        Change::Offline { device, temporary, fault } => {
            let mode = if *fault { OfflineMode::Fault } else { OfflineMode::Offline };
            let how = Offline { mode, temporary: *temporary };
            let pool = pool()?;
            state.engine().offline(&pool, device, how, command).map_err(|e| {
                Error::new(e.kind(), format!("cannot offline {device}: {}", e.message()))
            })?;
        }
        Change::Online { device, expand } => {
            let pool = pool()?;
            state.engine().online(&pool, device, *expand, command).map_err(|e| {
                let missing = e.message() == "no such device in pool";
                let text = match missing {
                    true => format!("couldn't find device \"{device}\" in pool \"{name}\""),
                    false => format!("cannot online {device}: {}", e.message()),
                };
                Error::new(e.kind(), text)
            })?;
        }
        Change::Attach(args) => attach(state, &*pool()?, args, command)?,
        Change::Detach(device) => {
            pool()?.detach_vdev(device, command).map_err(|e| {
                Error::new(e.kind(), format!("cannot detach {device}: {}", e.message()))
            })?;
        }
        Change::Split(args) => return split(state, name, &*pool()?, args, command, to),
        Change::Reopen => {
            let pool = pool()?;
            state.engine().reopen(&pool).map_err(|e| {
                Error::new(e.kind(), format!("cannot reopen '{name}': {}", e.message()))
            })?;
        }
        Change::Scan(request) => {
            let (action, request) = scan_request(*request);
            let pool = pool()?;
            pool.scan(request, command).map_err(|e| {
                let why = match e.location() == &base::error::ErrorLocation::default() {
                    true => e.message().to_owned(),
                    false => e.to_string(),
                };
                Error::new(e.kind(), format!("cannot {action} {name}: {why}"))
            })?;
        }
        Change::Checkpoint => pool()?.take_checkpoint(command).map_err(|e| {
            Error::new(e.kind(), format!("cannot checkpoint '{name}': {}", e.message()))
        })?,
        Change::DiscardCheckpoint => pool()?.discard_checkpoint(command).map_err(|e| {
            let text = format!("cannot discard checkpoint in '{name}': {}", e.message());
            Error::new(e.kind(), text)
        })?,
        Change::Trim(action, devices) => {
            let action = job_action(*action);
            pool()?.on_free_space(JobKind::Trim, action, few(devices)?, command)?;
        }
        Change::Initialize(action, devices) => {
            let action = job_action(*action);
            pool()?.on_free_space(JobKind::Initialize, action, few(devices)?, command)?;
        }
        Change::Defrag(args) => {
            let request = defrag_request(args);
            pool()?.defrag(&request, command).map_err(defrag_failed("defragment", name))?;
        }
        Change::EstimateDefrag(args) => {
            let request = defrag_request(args);
            let plan = pool()?.estimate_defrag(&request);
            let plan = plan.map_err(defrag_failed("defragment", name))?;
            return Ok(Reply::DefragPlan(super::convert::defrag_plan(&plan)));
        }
        Change::Unmap => {
            let fail = defrag_failed("erase the mappings of removed devices in", name);
            pool()?.unmap(command).map_err(fail)?;
        }
        Change::EstimateUnmap => {
            let fail = defrag_failed("erase the mappings of removed devices in", name);
            return Ok(Reply::ToMove(pool()?.estimate_unmap().map_err(fail)?));
        }
        Change::PauseDefrag => {
            let fail = defrag_failed("pause defragmenting", name);
            pool()?.pause_defrag(command).map_err(fail)?;
        }
        Change::CancelDefrag => {
            let fail = defrag_failed("cancel defragmenting", name);
            pool()?.cancel_defrag(command).map_err(fail)?;
        }
        Change::Rebalance(args) => {
            let done = pool()?.rebalance(rebalance_kind(*args), command);
            done.map_err(defrag_failed("rebalance", name))?;
        }
        Change::EstimateRebalance(args) => {
            let plan = pool()?.estimate_rebalance(rebalance_kind(*args));
            let plan = plan.map_err(defrag_failed("rebalance", name))?;
            return Ok(Reply::RebalancePlan(super::convert::rebalance_plan(plan)));
        }
        Change::PauseRebalance => {
            let fail = defrag_failed("pause rebalancing", name);
            pool()?.pause_rebalance(command).map_err(fail)?;
        }
        Change::CancelRebalance => {
            let fail = defrag_failed("cancel rebalancing", name);
            pool()?.cancel_rebalance(command).map_err(fail)?;
        }
        Change::PruneDedup(args) => {
            let fail = |e: Error| {
                let text = format!("cannot prune dedup table on '{name}': {}", e.message());
                Error::new(e.kind(), text)
            };
            pool()?.prune_dedup(prune_request(*args), command).map_err(fail)?;
        }
        Change::PrefetchDedup => pool()?.prefetch_dedup().map_err(|e| {
            Error::new(e.kind(), format!("cannot prefetch ddt in '{name}': {}", e.message()))
        })?,
        Change::Clear(device) => {
            let (pool, device) = (pool()?, device.as_deref());
            state.engine().clear(&pool, device, command).map_err(|e| {
                let of = device.unwrap_or(name);
                Error::new(e.kind(), format!("cannot clear errors for {of}: {e}"))
            })?;
        }
    }
    Ok(Reply::Done)
}

fn prune_request(args: PruneArgs) -> PruneRequest {
    match args {
        PruneArgs::Days(days) => PruneRequest::Days(days),
        PruneArgs::Percent(percent) => PruneRequest::Percent(percent),
    }
}

/// `zpool split`; with an alternate root, the new pool is imported.
fn split(
    state: &Arc<DaemonState>,
    name: &str,
    pool: &Pool,
    args: &SplitArgs,
    command: Option<&str>,
    to: &mut dyn RowListener,
) -> Result<Reply> {
    let fail = |e: Error| {
        let text = format!("Unable to split {name}: {}", e.message());
        Error::new(e.kind(), text)
    };
    let setting = |(property, value): &(String, String)| {
        pool_setting(property, value, When::Set).map_err(|why| fail(Error::invalid(why)))
    };
    let request = SplitRequest {
        new_name: args.new_name.clone(),
        devices: args.devices.clone(),
        settings: args.props.iter().map(setting).collect::<Result<_>>()?,
        dry_run: args.dry_run,
        command: command.map(str::to_owned),
    };
    let done = state.engine().split(pool, &request).map_err(fail)?;
    let devices = done.devices.into_iter().map(|(guid, path)| (guid.0, path));
    let mut report = SplitReport { devices: devices.collect(), lines: Vec::new() };
    if args.altroot.is_some() && !args.dry_run {
        let paths = report.devices.iter().map(|(_, path)| path.clone()).collect();
        let import = ImportArgs {
            search: SearchArgs { paths, destroyed: false },
            guid: done.guid.0,
            name: args.new_name.clone(),
            altroot: args.altroot.clone(),
            ..ImportArgs::default()
        };
        report.lines = state.import(&import, to)?.1;
    }
    Ok(Reply::Split(Box::new(report)))
}

/// `zpool attach` and `zpool replace`.
fn attach(
    state: &DaemonState,
    pool: &Pool,
    args: &AttachArgs,
    command: Option<&str>,
) -> Result<()> {
    let new = match &args.new {
        Some(AttachDevice::Path(proto::NewKind::File(path))) => {
            Some(NewDevice::Path(NewKind::File(path.clone())))
        }
        Some(AttachDevice::Path(proto::NewKind::Disk(path))) => {
            Some(NewDevice::Path(NewKind::Disk(path.clone())))
        }
        Some(AttachDevice::Path(_)) => {
            return Err(Error::invalid("new device must be a single disk"));
        }
        Some(AttachDevice::Spare(name)) => Some(NewDevice::Spare(name.clone())),
        None => None,
    };
    let shown = match &new {
        Some(NewDevice::Path(NewKind::File(path) | NewKind::Disk(path))) => {
            path.display().to_string()
        }
        Some(NewDevice::Spare(name)) => name.clone(),
        Some(NewDevice::Path(_)) | None => args.old.clone(),
    };
    let request = AttachRequest {
        old: args.old.clone(),
        new,
        mode: if args.replace { AttachMode::Replace } else { AttachMode::Attach },
        sequential: args.sequential,
        force: args.force,
        ashift: args.ashift,
        command: command.map(str::to_owned),
    };
    let old = &args.old;
    state.engine().attach(pool, &request).map_err(|e| {
        let why = e.message();
        // Those of a device begin like this, too.
        let whole = e.kind() != ErrorKind::Io && !why.starts_with("cannot replace a");
        if whole && COMPLETE_PREFIXES.iter().any(|w| why.starts_with(w)) {
            return Error::new(e.kind(), why);
        }
        let text = match args.replace {
            true => format!("cannot replace {old} with {shown}: {why}"),
            false => format!("cannot attach {shown} to {old}: {why}"),
        };
        Error::new(e.kind(), text)
    })
}

/// Devices of one request, if they are not too many.
fn few(devices: &[String]) -> Result<&[String]> {
    match devices.len() {
        0..=DEVICES_MAX => Ok(devices),
        _ => Err(Error::limit("too many devices in one request")),
    }
}

fn job_action(action: proto::JobAction) -> JobAction {
    match action {
        proto::JobAction::Start { rate, secure } => JobAction::Start { rate, secure },
        proto::JobAction::Cancel => JobAction::Cancel,
        proto::JobAction::Suspend => JobAction::Suspend,
        proto::JobAction::Forget => JobAction::Forget,
    }
}

/// `zpool labelclear`.
///
/// # Errors
/// The whole message for the user.
pub(super) fn label_clear(state: &DaemonState, path: &Path, force: bool) -> Result<Reply> {
    let shown = path.display();
    let cleared = state.engine().clear_labels(path, force).map_err(|e| match e.kind() {
        ErrorKind::Busy if e.location() == &base::error::ErrorLocation::default() => e,
        kind => Error::new(kind, format!("failed to open {shown}: {e}")),
    })?;
    Ok(Reply::Truth(cleared))
}

/// `zpool history`.
///
/// # Errors
/// The pool's records cannot be read.
pub(super) fn history(pool: &Arc<Pool>, from: u64) -> Result<Reply> {
    let records = pool.spa().history()?;
    let from = usize::try_from(from).unwrap_or(usize::MAX).min(records.len());
    let rest = records.get(from..).unwrap_or_default();
    let some: Vec<HistoryRecord> = rest.iter().take(HISTORY_MAX).map(record).collect();
    let more = some.len() < rest.len();
    Ok(Reply::History(some, more))
}

fn record(list: &NvList) -> HistoryRecord {
    let text = |key: &str| list.str(key).map(str::to_owned);
    HistoryRecord {
        time: list.u64("history time").unwrap_or(0),
        event: event(list),
        who: list.u64("history who"),
        host: text("history hostname"),
        zone: text("history zone"),
    }
}

fn event(list: &NvList) -> HistoryEvent {
    let text = |key: &str| list.str(key).unwrap_or_default().to_owned();
    let txg = list.u64("history txg").unwrap_or(0);
    if list.contains("history command") {
        return HistoryEvent::Command(text("history command"));
    }
    if list.contains("internal_name") {
        let dataset = list.str("dsname").map(|n| (n.to_owned(), list.u64("dsid").unwrap_or(0)));
        let (name, text) = (text("internal_name"), text("history internal str"));
        return HistoryEvent::Internal { txg, name, dataset, text };
    }
    // Numbers above the last event that OpenZFS ever defined have no meaning.
    if let Some(event) = list.u64("history internal event").filter(|e| *e <= 40) {
        return HistoryEvent::Numbered { txg, event, text: text("history internal str") };
    }
    if list.contains("ioctl") {
        let shown = |key: &str| list.list(key).map(|l| l.indented(8).to_string());
        let errno = match list.get("errno") {
            Some(Value::Int64(n)) => Some(*n),
            Some(Value::Int32(n)) => Some(i64::from(*n)),
            _ => None,
        };
        let (input, output) = (shown("in_nvl"), shown("out_nvl"));
        return HistoryEvent::Ioctl { name: text("ioctl"), input, output, errno };
    }
    HistoryEvent::Unknown(list.indented(4).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> CreateArgs {
        let leaf = |n: &str| proto::NewVdev {
            kind: proto::NewKind::File(Path::new("/f").join(n)),
            class: VdevRole::Normal,
            children: Vec::new(),
        };
        let prop = |n: &str, v: &str| (n.to_owned(), v.to_owned());
        CreateArgs {
            name: "tank".into(),
            vdevs: vec![
                proto::NewVdev {
                    kind: proto::NewKind::Mirror,
                    class: VdevRole::Special,
                    children: vec![leaf("a"), leaf("b")],
                },
                leaf("c"),
            ],
            features: vec!["lz4_compress".into()],
            props: vec![prop("ashift", "12"), prop("altroot", "/alt"), prop("cachefile", "none")],
            fs_props: vec![prop("compression", "lz4")],
            command: "zpool create".into(),
            ..CreateArgs::default()
        }
    }

    #[test]
    fn a_request_from_the_wire() {
        let request = create_request(&args()).unwrap();
        assert_eq!(request.ashift(), Some(12));
        assert_eq!(request.altroot.as_deref(), Some(Path::new("/alt")));
        assert_eq!(request.settings.len(), 1, "the others are not the pool's");
        assert_eq!(request.vdevs[0].role, Role::Special);
        assert_eq!(
            leaf_paths(&request.vdevs),
            [Path::new("/f/a"), "/f/b".as_ref(), "/f/c".as_ref()]
        );
        assert_eq!(request.features[0].name(), "lz4_compress");
        assert_eq!(request.command.as_deref(), Some("zpool create"));
    }

    #[test]
    fn the_wire_is_not_believed() {
        let refused = |change: &dyn Fn(&mut CreateArgs)| {
            let mut args = args();
            change(&mut args);
            create_request(&args).unwrap_err().message().to_owned()
        };
        assert!(refused(&|a| a.name = "raidz".into()).contains("name is reserved"));
        assert!(refused(&|a| a.features = vec!["nope".into()]).contains("unsupported"));
        assert!(refused(&|a| a.props.push(("size".into(), "1".into()))).contains("readonly"));
        assert!(refused(&|a| a.fs_props.push(("copies".into(), "9".into()))).contains("one of"));
        assert!(refused(&|a| a.props.push(("version".into(), "28".into()))).contains("lz4"));
        let deep = |a: &mut CreateArgs| {
            let child = a.vdevs[0].clone();
            a.vdevs[0].children.push(child);
        };
        assert!(refused(&deep).contains("too deep"));
        let many = |a: &mut CreateArgs| {
            a.vdevs = vec![a.vdevs[1].clone(); DEVICES_MAX + 1];
        };
        assert!(refused(&many).contains("too many devices"));
    }

    #[test]
    fn messages_get_their_action_once() {
        let whole = Error::invalid("invalid vdev specification\nuse '-f' ...");
        assert_eq!(user_message("create", "tank", &whole).message(), whole.message());
        let part = Error::new(ErrorKind::Exists, "pool already exists");
        assert_eq!(
            user_message("create", "tank", &part).message(),
            "cannot create 'tank': pool already exists"
        );
    }

    #[test]
    fn records_of_every_kind() {
        let list = |pairs: &[(&str, &str)]| {
            let mut list = NvList::new();
            for (name, text) in pairs {
                list.add_str(name, text);
            }
            list.add_u64("history time", 5).add_u64("history txg", 9);
            list
        };
        let command = record(&list(&[("history command", "zpool x"), ("history hostname", "vm")]));
        assert_eq!(command.event, HistoryEvent::Command("zpool x".into()));
        assert_eq!((command.time, command.host.as_deref()), (5, Some("vm")));
        let internal = event(&list(&[("internal_name", "create"), ("dsname", "a/b")]));
        assert!(
            matches!(internal, HistoryEvent::Internal { txg: 9, dataset: Some(d), .. } if d.0 == "a/b")
        );
        let mut old = list(&[("history internal str", "s")]);
        old.add_u64("history internal event", 5);
        assert!(matches!(event(&old), HistoryEvent::Numbered { event: 5, .. }));
        old.add_u64("history internal event", 41);
        assert!(matches!(event(&old), HistoryEvent::Unknown(_)));
        let mut ioctl = list(&[("ioctl", "create")]);
        let mut input = NvList::new();
        input.add_u64("type", 2);
        ioctl.add_list("in_nvl", input).insert("errno", Value::Int64(5));
        let HistoryEvent::Ioctl { input, errno, .. } = event(&ioctl) else { unreachable!() };
        assert_eq!((input.as_deref(), errno), (Some("        type: 2\n"), Some(5)));
    }
}
