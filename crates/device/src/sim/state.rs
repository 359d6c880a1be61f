//! The state of the controller: the log, the faults, and the content that reads see.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::rt::sim::Rng;
use base::{Buf, Error, ErrorKind, Result};

use super::image::Image;
use super::log::{CrashPoint, Data, Event, elsewhere};
use super::{Action, Faults, Hook, SimConfig};
use crate::op::Io;

/// Events between two checkpoints.
const CHECKPOINT: u64 = 128;

/// An operation in flight.
pub(super) enum Ticket {
    Read {
        stale: bool,
    },
    Write {
        event: u64,
        offset: u64,
        data: Data,
    },
    Flush {
        event: u64,
        is_lying: bool,
    },
    /// The operation fails when it ends.
    Failed,
}

pub(super) struct SimState {
    record: bool,
    sector: u64,
    rng: Rng,
    /// Events so far.
    count: u64,
    log: Vec<Event>,
    marks: Vec<(u64, u64)>,
    checkpoints: Vec<(u64, CrashPoint)>,
    pub(super) now: CrashPoint,
    pub(super) current: Vec<Image>,
    faults: Vec<Faults>,
    actions: BTreeMap<u64, Vec<Action>>,
    /// Writes in flight: disk, first byte, length.
    in_flight: BTreeMap<u64, (usize, u64, u64)>,
    pub(super) overlaps: u64,
    pub(super) crashed: bool,
    pub(super) hook: Option<Hook>,
    /// The hook is to be called.
    call: bool,
}

fn off() -> Error {
    Error::new(ErrorKind::Io, "the simulated power is off")
}

impl SimState {
    pub(super) fn new(config: &SimConfig, point: CrashPoint) -> SimState {
        let current = point.durable();
        let faults = vec![Faults::default(); current.len()];
        let checkpoints = if config.record { vec![(0, point.clone())] } else { Vec::new() };
        SimState {
            record: config.record,
            sector: u64::from(config.sector.max(1)),
            rng: Rng::stream(config.seed, 10),
            count: 0,
            log: Vec::new(),
            marks: Vec::new(),
            checkpoints,
            now: point,
            current,
            faults,
            actions: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            overlaps: 0,
            crashed: false,
            hook: None,
            call: false,
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn take_hook(&mut self) -> Option<Hook> {
        if std::mem::take(&mut self.call) { self.hook.take() } else { None }
    }

    pub(super) fn set_faults(&mut self, disk: usize, faults: Faults) {
        if let Some(slot) = self.faults.get_mut(disk) {
            *slot = faults;
        }
    }

    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        self.rng.shuffle(items);
    }

    pub(super) fn log(&self) -> Vec<Event> {
        self.log.clone()
    }

    pub(super) fn marks_before(&self, event: u64) -> Vec<u64> {
        let n = self.marks.partition_point(|(at, _)| *at < event);
        self.marks[..n].iter().map(|(_, tag)| *tag).collect()
    }

    pub(super) fn point(&self, event: u64) -> Result<CrashPoint> {
        if event == self.count {
            return Ok(self.now.clone());
        }
        let near = self.checkpoints.partition_point(|(n, _)| *n <= event);
        let near = near.checked_sub(1).and_then(|i| self.checkpoints.get(i));
        let Some((from, point)) = near.filter(|_| event < self.count) else {
            return Err(Error::invalid(format!("event {event} is not in the log")));
        };
        let mut point = point.clone();
        for n in *from..event {
            point.apply(n, &self.log[n as usize])?;
        }
        Ok(point)
    }

    /// Appends an event, performs the actions scheduled for it, and returns its number.
    pub(super) fn record(&mut self, event: Event) -> Result<u64> {
        if self.crashed {
            return Err(off());
        }
        let n = self.count;
        self.now.apply(n, &event)?;
        if let Event::Mark(tag) = event {
            self.marks.push((n, tag));
        }
        self.count += 1;
        if self.record {
            self.log.push(event);
            if self.count.is_multiple_of(CHECKPOINT) {
                self.checkpoints.push((self.count, self.now.clone()));
            }
        }
        self.act();
        Ok(n)
    }

    pub(super) fn schedule(&mut self, event: u64, action: Action) {
        self.actions.entry(event).or_default().push(action);
        self.act();
    }

    fn act(&mut self) {
        while let Some(entry) = self.actions.first_entry() {
            if *entry.key() > self.count {
                return;
            }
            for action in entry.remove() {
                // The action is an event of its own; actions scheduled for that event
                // follow.
                let _ = match action {
                    Action::Crash => {
                        self.call = !self.crashed;
                        self.crashed = true;
                        return;
                    }
                    Action::Drop { disk } => self.record(Event::Dropped { disk }),
                    Action::Return { disk } => self.record(Event::Returned { disk }),
                    Action::Faults { disk, faults } => {
                        self.set_faults(disk, faults);
                        Ok(0)
                    }
                };
            }
        }
    }

    fn reachable(&self, disk: usize) -> Result<()> {
        if self.crashed {
            Err(off())
        } else if self.now.is_dropped(disk) {
            Err(Error::new(ErrorKind::Io, format!("the simulated disk {disk} is gone")))
        } else {
            Ok(())
        }
    }

    pub(super) fn begin(&mut self, disk: usize, io: &Io) -> Result<Ticket> {
        self.reachable(disk)?;
        let faults = self.faults[disk];
        match io {
            Io::Read { .. } => {
                if self.rng.one_in(faults.read_errors) {
                    return Ok(Ticket::Failed);
                }
                Ok(Ticket::Read { stale: self.rng.one_in(faults.stale_reads) })
            }
            Io::Write { offset, bufs } => {
                // The log must not hold the caller's buffers: a cache would never evict them.
                let copies = bufs.iter().map(|buf| Buf::copy_of(buf));
                let data = Data::Bytes(copies.collect::<Arc<[_]>>());
                if self.rng.one_in(faults.write_errors) {
                    self.fail_write(disk, *offset, &data)?;
                    return Ok(Ticket::Failed);
                }
                let mut at = *offset;
                if self.rng.one_in(faults.misdirected) {
                    let size = self.current[disk].size();
                    at = elsewhere(&mut self.rng, size, data.len(), self.sector);
                }
                self.write(disk, at, data)
            }
            Io::Trim { offset, len } => self.write(disk, *offset, Data::Zeros(*len)),
            Io::Flush => {
                if self.rng.one_in(faults.flush_errors) {
                    return Ok(Ticket::Failed);
                }
                let event = self.record(Event::Flush { disk })?;
                Ok(Ticket::Flush { event, is_lying: self.rng.one_in(faults.lying_flushes) })
            }
        }
    }

    fn write(&mut self, disk: usize, offset: u64, data: Data) -> Result<Ticket> {
        let len = data.len();
        let meets =
            |&&(d, o, l): &&(usize, u64, u64)| d == disk && offset < o + l && o < offset + len;
        self.overlaps += self.in_flight.values().filter(meets).count() as u64;
        let event = self.record(Event::Write { disk, offset, data: data.clone() })?;
        self.in_flight.insert(event, (disk, offset, len));
        Ok(Ticket::Write { event, offset, data })
    }

    /// A write that fails; some of its sectors become pending nevertheless.
    fn fail_write(&mut self, disk: usize, offset: u64, data: &Data) -> Result<()> {
        let Data::Bytes(bufs) = data else { return Ok(()) };
        let mut at = offset;
        for buf in bufs.iter() {
            for from in (0..buf.len()).step_by(self.sector as usize) {
                if self.rng.one_in(2) {
                    let part = buf.slice(from..buf.len().min(from + self.sector as usize));
                    let data = Data::Bytes(Arc::new([part]));
                    let ticket = self.write(disk, at + from as u64, data)?;
                    self.written(disk, &ticket)?;
                }
            }
            at += buf.len() as u64;
        }
        Ok(())
    }

    fn written(&mut self, disk: usize, ticket: &Ticket) -> Result<usize> {
        let Ticket::Write { event, offset, data } = ticket else { return Ok(0) };
        self.in_flight.remove(event);
        self.record(Event::Done { disk, write: *event })?;
        data.apply(&mut self.current[disk], *offset, 0, data.len())?;
        Ok(data.len() as usize)
    }

    pub(super) fn finish(&mut self, disk: usize, ticket: &Ticket, io: &mut Io) -> Result<usize> {
        if let Ticket::Write { event, .. } = ticket
            && self.reachable(disk).is_err()
        {
            self.in_flight.remove(event);
        }
        self.reachable(disk)?;
        match ticket {
            Ticket::Failed => Err(Error::new(ErrorKind::Io, "a simulated error")),
            Ticket::Read { stale } => {
                let Io::Read { offset, buf } = io else {
                    return Err(Error::bug("a read's ticket with another operation"));
                };
                let from = if *stale { &self.now.disks[disk].durable } else { &self.current[disk] };
                from.read(*offset, buf)?;
                Ok(buf.len())
            }
            Ticket::Write { .. } => self.written(disk, ticket),
            Ticket::Flush { event, is_lying } => {
                self.record(Event::Flushed { disk, flush: *event, lied: *is_lying })?;
                Ok(0)
            }
        }
    }
}
