//! From directory to open replica and back: create, adopt, open, close, release.

use std::io;

use sha2::{Digest, Sha256};

use super::recover::{Found, Whose, is_ours, recover, replace_meta};
use super::unwritten::{drop_unwritten, write_unwritten};
use super::{Volume, commit, flight, layers, reclaim};
use crate::buffer::BLOCK;
use crate::files::{Files, Stat};
use crate::index::Index;
use crate::meta::{
    DiskMeta, META_BYTES_MAX, MetaError, SECTOR_SIZE, TEMPORARY_SUFFIX, VOLUME_META, VolumeMeta, head_image, is_head,
    meta_name, render, snapshot_name,
};
use crate::op::FileId;
use crate::state::{self, Closed, FileMark, Header, Identity, REGION_BYTES, STATE_FILE, State, StateError, file_bytes};
use crate::tree::{Tree, TreeError};

/// Longest state file: the maps of 16 TiB, twice over.
const STATE_BYTES_MAX: u64 = 16 << 20;
/// Longhorn's counter of writes.
pub(crate) const REVISION_COUNTER: &str = "revision.counter";
/// Largest volume, in bytes: block numbers of the index fit 32 bits.
pub(super) const VOLUME_BYTES_MAX: u64 = 16 << 40;

/// A new replica.
#[derive(Debug, Clone, Default)]
pub struct Create {
    /// Uid of the volume.
    pub volume: String,
    /// Name of the replica.
    pub replica: String,
    pub size: u64,
    pub boot_id: String,
    /// Time of creation, RFC 3339.
    pub created: String,
}

/// A directory that Longhorn wrote, or that was released to it.
#[derive(Debug, Clone, Default)]
pub struct Adopt {
    pub volume: String,
    pub replica: String,
    pub boot_id: String,
    /// Why it must be made equal to another copy first; none if it is taken as it is.
    pub out_of_sync: Option<String>,
}

/// A directory that Tether used before.
#[derive(Debug, Clone, Default)]
pub struct Open {
    /// Uid of the volume it must belong to, if known.
    pub volume: Option<String>,
    /// The host's present boot (`/proc/sys/kernel/random/boot_id`).
    pub boot_id: String,
}

/// How the replica was left the last time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Previous {
    /// Closed: everything it acknowledged is there.
    Clean,
    /// The process died, the host did not: everything it acknowledged is there.
    Killed,
    /// The host went down: what was not flushed may be missing.
    Rebooted,
}

/// What was found on opening.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    pub previous: Previous,
    /// Somebody else wrote here: why we think so. Recorded as out of sync.
    pub foreign: Option<String>,
    /// What was put in order.
    pub repairs: Vec<String>,
}

/// A directory that was handed back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Released {
    /// Longhorn may use it as a current copy.
    Current,
    /// It is marked as being rebuilt, so that Longhorn does not read it.
    Stale,
}

/// Why a directory could not be opened, created, adopted, closed or released.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
    #[error("not a replica: there is no {VOLUME_META} and no single volume-head-NNN.img")]
    NotAReplica,
    #[error("this is a replica already; open it, or adopt it if Longhorn wrote it")]
    Exists,
    #[error("this replica has no {STATE_FILE}: Longhorn wrote it; adopt it first")]
    NotAdopted,
    #[error("this replica has a {STATE_FILE} and was not released; open it")]
    NotReleased,
    #[error("this replica was released to Longhorn; adopt it again to use it")]
    WasReleased,
    #[error("this replica belongs to volume {found:?}, not to {expected:?}; check the directory")]
    WrongVolume { expected: String, found: String },
    #[error(transparent)]
    Meta(#[from] MetaError),
    #[error(transparent)]
    Tree(#[from] TreeError),
    #[error(transparent)]
    State(#[from] StateError),
    #[error("{file}: field {field} is {value:?}; {fix}")]
    Field { file: String, field: &'static str, value: String, fix: &'static str },
    #[error("{image} is missing, though other files refer to it; restore it, or rebuild this replica")]
    MissingImage { image: String },
    #[error("{image} has {size} bytes, which is no multiple of 4096; rebuild this replica")]
    Length { image: String, size: u64 },
    #[error("a volume of {0} bytes is not possible; choose a multiple of 4096, at most 16 TiB")]
    Size(u64),
    #[error("the filesystem allocates {0} bytes at a time; layers need one with blocks of at most 4096 bytes")]
    Unit(u64),
    #[error("requests are under way")]
    Busy,
    #[error("this copy is not known to be in sync ({0}); release it as stale, or resync it first")]
    NotInSync(String),
}

impl OpenError {
    pub(super) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what: what.into(), source }
    }
}

fn check_unit<F: Files>(files: &F) -> Result<(), OpenError> {
    let unit = files.abilities().unit;
    if unit > BLOCK { Err(OpenError::Unit(unit)) } else { Ok(()) }
}

impl<F: Files> Volume<F> {
    /// Makes a replica in an empty directory (or one where this was interrupted).
    pub fn create(mut files: F, options: &Create) -> Result<(Self, Opened), OpenError> {
        check_unit(&files)?;
        let size = options.size;
        if size == 0 || !size.is_multiple_of(BLOCK) || size > VOLUME_BYTES_MAX {
            return Err(OpenError::Size(size));
        }
        clear_unfinished(&mut files)?;
        let head = head_image(0);
        files.create_sparse(&head, size).map_err(OpenError::io(&head))?;
        let disk = DiskMeta { name: head.clone(), created: options.created.clone(), ..DiskMeta::default() };
        files.write_file(&meta_name(&head), &render(&disk)).map_err(OpenError::io(&head))?;
        let meta = VolumeMeta {
            size: size as i64,
            head: head.clone(),
            dirty: true,
            sector_size: SECTOR_SIZE,
            ..VolumeMeta::default()
        };
        let header = Header {
            volume: options.volume.clone(),
            replica: options.replica.clone(),
            ..fresh_header(size, &options.boot_id)
        };
        let state = install(&mut files, &meta, header)?;
        let tree = Tree { disks: [(head.clone(), disk)].into(), head };
        let volume = Self::assemble(files, Found { meta, tree, repairs: Vec::new() }, state)?;
        Ok((volume, Opened { previous: Previous::Clean, foreign: None, repairs: Vec::new() }))
    }

    /// Takes over what Longhorn wrote, as it is.
    pub fn adopt(mut files: F, options: &Adopt) -> Result<(Self, Opened), OpenError> {
        check_unit(&files)?;
        let before = match read_state(&mut files)? {
            Some((state, _)) if !state.header.released => return Err(OpenError::NotReleased),
            before => before.map(|(state, _)| state.header),
        };
        let mut found = recover(&mut files, Whose::Others)?;
        found.meta.dirty = true;
        found.meta.parent.clone_from(&found.tree.disks[&found.tree.head].parent);
        write_unwritten(&mut files, &found.tree)?;
        let repairs = found.repairs.clone();
        let size = found.meta.size as u64;
        let header = Header {
            volume: options.volume.clone(),
            replica: options.replica.clone(),
            out_of_sync: options.out_of_sync.clone(),
            // What was promised once is never taken back.
            promise: before.as_ref().map(|header| header.promise.clone()).unwrap_or_default(),
            generation: before.map_or(0, |header| header.generation),
            ..fresh_header(size, &options.boot_id)
        };
        let state = install(&mut files, &found.meta, header)?;
        Ok((Self::assemble(files, found, state)?, Opened { previous: Previous::Clean, foreign: None, repairs }))
    }

    /// Opens a replica that Tether used before.
    pub fn open(mut files: F, options: &Open) -> Result<(Self, Opened), OpenError> {
        check_unit(&files)?;
        let Some((mut state, _)) = read_state(&mut files)? else {
            let known = files.stat(VOLUME_META).map_err(OpenError::io(VOLUME_META))?.is_some();
            return Err(if known { OpenError::NotAdopted } else { OpenError::NotAReplica });
        };
        if state.header.released {
            return Err(OpenError::WasReleased);
        }
        if let Some(expected) = options.volume.clone().filter(|expected| *expected != state.header.volume) {
            return Err(OpenError::WrongVolume { expected, found: state.header.volume });
        }
        let foreign = foreign_change(&mut files, &state.header)?;
        let found = recover(&mut files, Whose::Ours)?;
        let header = &mut state.header;
        let previous = match (header.open, header.boot_id == options.boot_id) {
            (false, _) => Previous::Clean,
            (true, true) => Previous::Killed,
            (true, false) => Previous::Rebooted,
        };
        header.doubt |=
            previous == Previous::Rebooted && state.maps[state::ACTIVITY].as_ref().is_some_and(|l| !l.is_empty());
        if let Some(reason) = &foreign {
            header.out_of_sync.get_or_insert_with(|| reason.clone());
        }
        header.open = true;
        header.closed = None;
        header.boot_id.clone_from(&options.boot_id);
        let repairs = found.repairs.clone();
        let mut volume = Self::assemble(files, found, state)?;
        if previous == Previous::Killed {
            // The dead process may have changed older layers and not come to sync them.
            volume.unsynced.extend(volume.layers.iter().map(|layer| layer.file));
        }
        if previous == Previous::Rebooted {
            drop_unwritten(&mut volume.files, &volume.tree)?;
        }
        volume.grow_state()?;
        volume.meta.parent.clone_from(&volume.tree.disks[&volume.tree.head].parent);
        let meta = VolumeMeta { dirty: true, ..volume.meta.clone() };
        volume.replace_volume_meta(meta)?;
        Ok((volume, Opened { previous, foreign, repairs }))
    }

    /// Opens the files of the chain and builds the index.
    fn assemble(mut files: F, found: Found, state: State) -> Result<Self, OpenError> {
        let Found { meta, tree, .. } = found;
        let state_file = files.open(STATE_FILE).map_err(OpenError::io(STATE_FILE))?;
        let abilities = files.abilities();
        let mut volume = Self {
            files,
            abilities,
            index: Index::new(meta.size as u64 / BLOCK),
            meta,
            tree,
            layers: layers::Layers::default(),
            aside: std::collections::BTreeMap::new(),
            state,
            state_file,
            commit: commit::Commit::default(),
            flight: flight::Flight::default(),
            reclaim: reclaim::Progress::default(),
            unsynced: std::collections::BTreeSet::new(),
            broken: None,
        };
        volume.open_chain()?;
        Ok(volume)
    }

    /// Opens the live chain anew and indexes it.
    pub(super) fn open_chain(&mut self) -> Result<(), OpenError> {
        self.layers = layers::Layers::default();
        for image in self.tree.live()?.into_iter().rev() {
            let file = match self.aside.remove(&image) {
                Some(file) => file,
                None => self.files.open(&image).map_err(OpenError::io(&image))?,
            };
            let stat = self.files.stat(&image).map_err(OpenError::io(&image))?;
            let blocks = stat.map_or(0, |stat| stat.size / BLOCK).min(self.index.blocks());
            self.layers.push(image, file, blocks);
        }
        self.reindex(0, self.index.blocks()).map_err(OpenError::io("map of allocated ranges"))
    }

    /// Syncs an image and waits. As on the data path, one failure is final.
    pub(super) fn sync_image(&mut self, file: FileId) -> Result<(), OpenError> {
        let synced = self.files.sync(file);
        if let Err(error) = &synced {
            self.broken.get_or_insert(error.into());
        }
        synced.map_err(OpenError::io("sync of an image"))
    }

    /// Makes changes of older layers durable.
    pub(super) fn sync_unsynced(&mut self) -> Result<(), OpenError> {
        while let Some(file) = self.unsynced.first().copied() {
            self.sync_image(file)?;
            self.unsynced.remove(&file);
        }
        Ok(())
    }

    /// Replaces `volume.meta`. Its new identity is recorded before it is in place, so that a crash in between
    /// does not look like somebody else's work.
    pub(super) fn replace_volume_meta(&mut self, meta: VolumeMeta) -> Result<(), OpenError> {
        let temporary = format!("{VOLUME_META}{TEMPORARY_SUFFIX}");
        let contents = render(&meta);
        let stat = self.files.write_file(&temporary, &contents).map_err(OpenError::io(VOLUME_META))?;
        let new = identity(&stat, &contents);
        if let Some(present) = identity_of(&mut self.files)? {
            self.state.header.volume_meta = vec![present, new];
        } else {
            self.state.header.volume_meta = vec![new];
        }
        self.write_header()?;
        self.files.rename(&temporary, VOLUME_META).map_err(OpenError::io(VOLUME_META))?;
        self.files.sync_dir().map_err(OpenError::io("sync of the directory"))?;
        self.meta = meta;
        Ok(())
    }

    /// Writes both copies of the header and waits for them.
    pub(super) fn write_header(&mut self) -> Result<(), OpenError> {
        self.state.sequence += 1;
        let block = self.state.render_header()?;
        for slot in 0..2 {
            self.files.write_at(self.state_file, slot * BLOCK, &block).map_err(OpenError::io(STATE_FILE))?;
            self.files.sync(self.state_file).map_err(OpenError::io(STATE_FILE))?;
        }
        Ok(())
    }

    /// Closes properly: everything durable, not dirty, and marked so that others' changes show.
    pub fn close(mut self) -> Result<(), OpenError> {
        self.close_files(false)
    }

    fn close_files(&mut self, rebuilding: bool) -> Result<(), OpenError> {
        if !self.is_idle() {
            return Err(OpenError::Busy);
        }
        if let Some(fault) = self.broken {
            return Err(OpenError::Io { what: "an earlier sync".to_owned(), source: io::Error::other(fault) });
        }
        // All of them, not only those in use: a process before this one may have left times of change that are
        // not durable, and the marks below contain them.
        let images: Vec<String> = self.tree.disks.keys().cloned().collect();
        for image in images {
            let file = self
                .file_of(&image)
                .map_err(|error| OpenError::Io { what: image.clone(), source: io::Error::other(error) })?;
            self.sync_image(file)?;
        }
        let rebuilding = rebuilding || self.meta.rebuilding || self.state.header.rebuilding;
        self.replace_volume_meta(VolumeMeta { dirty: false, rebuilding, ..self.meta.clone() })?;
        self.state.header.closed = Some(marks(&mut self.files, &self.tree.head)?);
        self.state.header.open = false;
        self.write_header()
    }

    /// Hands the directory back to Longhorn.
    pub fn release(mut self, how: &Released) -> Result<(), OpenError> {
        let header = &self.state.header;
        let active = self.state.maps[state::ACTIVITY].as_ref().map_or(0, state::RegionMap::count);
        let reason = match (&header.out_of_sync, header.doubt, active) {
            _ if header.rebuilding => Some("it is being rebuilt".to_owned()),
            (Some(reason), ..) => Some(reason.clone()),
            (None, true, _) => Some("the host lost power while it was written".to_owned()),
            (None, false, 1..) => Some(format!("{active} regions are in its activity log")),
            (None, false, 0) => None,
        };
        if let (Released::Current, Some(reason)) = (how, reason) {
            return Err(OpenError::NotInSync(reason));
        }
        if *how == Released::Current {
            self.count_revision()?;
        }
        self.state.header.released = true;
        self.close_files(*how == Released::Stale)
    }

    /// Longhorn trusts the copies with the highest counter; those that are current must have it.
    fn count_revision(&mut self) -> Result<(), OpenError> {
        let contents =
            self.files.read_file(REVISION_COUNTER, META_BYTES_MAX).map_err(OpenError::io(REVISION_COUNTER))?;
        let Some(contents) = contents else { return Ok(()) };
        let text = String::from_utf8_lossy(&contents);
        let text = text.trim_matches('\0');
        let Ok(counter) = text.parse::<i64>() else {
            let file = REVISION_COUNTER.to_owned();
            let fix = "must be a decimal number; write it by hand, or delete the file";
            return Err(OpenError::Field { file, field: "counter", value: text.to_owned(), fix });
        };
        let mut block = counter.saturating_add(1).to_string().into_bytes();
        block.resize(BLOCK as usize, 0);
        replace_meta(&mut self.files, REVISION_COUNTER, &block).map_err(OpenError::io(REVISION_COUNTER))
    }

    /// Marks the contents as incomplete for Longhorn, or no longer so.
    pub fn set_rebuilding(&mut self, rebuilding: bool) -> Result<(), OpenError> {
        if !self.is_idle() {
            return Err(OpenError::Busy);
        }
        self.replace_volume_meta(VolumeMeta { rebuilding, ..self.meta.clone() })
    }

    /// Makes room in the state file for all regions of the volume.
    pub(super) fn grow_state(&mut self) -> Result<(), OpenError> {
        let regions = state::regions(self.size(), self.state.header.region_bytes);
        let before = self.state.header.regions;
        if regions <= before {
            return Ok(());
        }
        for map in self.state.maps.iter_mut().flatten() {
            map.grow(regions);
        }
        // New sectors are sound before the header says that they count.
        for index in state::map::block_of(before)..state::map::blocks(regions) {
            for number in 0..state::MAPS {
                let block = self.state.render_block(number, index);
                let offset = state::map_offset(number, index);
                self.files.write_at(self.state_file, offset, &block).map_err(OpenError::io(STATE_FILE))?;
            }
        }
        self.files.sync(self.state_file).map_err(OpenError::io(STATE_FILE))?;
        self.state.header.regions = regions;
        self.write_header()
    }
}

fn fresh_header(size: u64, boot_id: &str) -> Header {
    Header {
        boot_id: boot_id.to_owned(),
        open: true,
        region_bytes: REGION_BYTES,
        regions: state::regions(size, REGION_BYTES),
        ..Header::default()
    }
}

fn read_state<F: Files>(files: &mut F) -> Result<Option<(State, bool)>, OpenError> {
    let contents = files.read_file(STATE_FILE, STATE_BYTES_MAX).map_err(OpenError::io(STATE_FILE))?;
    Ok(contents.map(|contents| State::parse(&contents)).transpose()?)
}

/// Puts a new state file and `volume.meta` in place, in this order: `volume.meta` makes it a replica.
fn install<F: Files>(files: &mut F, meta: &VolumeMeta, mut header: Header) -> Result<State, OpenError> {
    let temporary = format!("{VOLUME_META}{TEMPORARY_SUFFIX}");
    let contents = render(meta);
    let stat = files.write_file(&temporary, &contents).map_err(OpenError::io(VOLUME_META))?;
    let present = identity_of(files)?;
    header.volume_meta = present.into_iter().chain([identity(&stat, &contents)]).collect();
    let state = State::new(header);
    let file = state.render_file()?;
    debug_assert_eq!(file.len() as u64, file_bytes(state.header.regions));
    let staged = format!("{STATE_FILE}{TEMPORARY_SUFFIX}");
    files.write_file(&staged, &file).map_err(OpenError::io(STATE_FILE))?;
    files.rename(&staged, STATE_FILE).map_err(OpenError::io(STATE_FILE))?;
    files.sync_dir().map_err(OpenError::io("sync of the directory"))?;
    files.rename(&temporary, VOLUME_META).map_err(OpenError::io(VOLUME_META))?;
    files.sync_dir().map_err(OpenError::io("sync of the directory"))?;
    Ok(state)
}

/// Removes what an interrupted creation left; refuses to touch anything else.
fn clear_unfinished<F: Files>(files: &mut F) -> Result<(), OpenError> {
    let names = files.list().map_err(OpenError::io("list of files"))?;
    if names.iter().any(|name| name == VOLUME_META || snapshot_name(name).is_some()) {
        return Err(OpenError::Exists);
    }
    for name in names.iter().filter(|name| is_head(name)) {
        let stat = files.stat(name).map_err(OpenError::io(name))?;
        if stat.is_some_and(|stat| stat.allocated > 0) {
            return Err(OpenError::Exists);
        }
    }
    for name in names.iter().filter(|name| is_ours(name)) {
        files.remove(name).map_err(OpenError::io(name))?;
    }
    Ok(())
}

fn identity(stat: &Stat, contents: &[u8]) -> Identity {
    Identity { inode: stat.inode, modified_ns: stat.modified_ns, crc32: crc32fast::hash(contents) }
}

/// Identity of the `volume.meta` that is in place.
fn identity_of<F: Files>(files: &mut F) -> Result<Option<Identity>, OpenError> {
    let stat = files.stat(VOLUME_META).map_err(OpenError::io(VOLUME_META))?;
    let contents = files.read_file(VOLUME_META, META_BYTES_MAX).map_err(OpenError::io(VOLUME_META))?;
    Ok(stat.zip(contents).map(|(stat, contents)| identity(&stat, &contents)))
}

fn mark<F: Files>(files: &mut F, name: &str) -> Result<FileMark, OpenError> {
    let stat = files.stat(name).map_err(OpenError::io(name))?;
    let stat = stat.ok_or_else(|| OpenError::MissingImage { image: name.to_owned() })?;
    Ok(FileMark { name: name.to_owned(), inode: stat.inode, size: stat.size, modified_ns: stat.modified_ns })
}

/// What the data files look like.
fn marks<F: Files>(files: &mut F, head: &str) -> Result<Closed, OpenError> {
    let mut hash = Sha256::new();
    for name in files.list().map_err(OpenError::io("list of files"))? {
        if snapshot_name(&name).is_some() {
            hash.update(serde_json::to_vec(&mark(files, &name)?).expect("a mark must be representable as JSON"));
        }
    }
    let snapshots = crate::checksum::hex(&hash.finalize());
    Ok(Closed { head: mark(files, head)?, snapshots })
}

/// Whether somebody else wrote here since we last did. Longhorn replaces `volume.meta` whenever it opens a
/// replica; after a clean close the data files must be as they were, too.
fn foreign_change<F: Files>(files: &mut F, header: &Header) -> Result<Option<String>, OpenError> {
    let present = identity_of(files)?;
    if !present.is_some_and(|present| header.volume_meta.contains(&present)) {
        return Ok(Some(format!("{VOLUME_META} was replaced by another program")));
    }
    let Some(closed) = &header.closed else { return Ok(None) };
    if files.stat(&closed.head.name).map_err(OpenError::io(&closed.head.name))?.is_none() {
        return Ok(Some(format!("{} was removed by another program", closed.head.name)));
    }
    let now = marks(files, &closed.head.name)?;
    if now.head != closed.head {
        let (name, was, is) = (&closed.head.name, &closed.head, &now.head);
        return Ok(Some(format!(
            "{name} was changed by another program (size, time of change and inode were {} {} {}, are {} {} {})",
            was.size, was.modified_ns, was.inode, is.size, is.modified_ns, is.inode
        )));
    }
    if now.snapshots != closed.snapshots {
        return Ok(Some("an image of a snapshot was changed, added or removed by another program".to_owned()));
    }
    Ok(None)
}
