//! Facts of the host that a node reports: what it is, what it has, what it has left.

use std::fs;
use std::io;
use std::path::Path;

/// Why the host could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}")]
pub struct HostError {
    path: String,
    source: io::Error,
}

/// What does not change while the host runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    pub os_image: String,
    pub kernel: String,
    /// As Go names it: amd64, arm64.
    pub architecture: &'static str,
    pub boot_id: String,
    pub machine_id: String,
    pub cpus: usize,
    pub memory_bytes: u64,
    /// Size of the file system that the node's directory is on.
    pub storage_bytes: u64,
}

impl Facts {
    pub fn read(data_dir: &Path) -> Result<Self, HostError> {
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let text = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned());
        let failed = |path: &str| {
            let path = path.to_owned();
            move |source| HostError { path, source }
        };
        Ok(Self {
            os_image: os_image(&release),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            architecture: architecture(std::env::consts::ARCH),
            boot_id: text("/proc/sys/kernel/random/boot_id").map_err(failed("/proc/sys/kernel/random/boot_id"))?,
            machine_id: text("/etc/machine-id").unwrap_or_default(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: meminfo("MemTotal")?,
            storage_bytes: file_system(data_dir)?.0,
        })
    }
}

/// What is left right now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Available {
    pub memory_bytes: u64,
    pub storage_bytes: u64,
}

impl Available {
    pub fn read(data_dir: &Path) -> Result<Self, HostError> {
        Ok(Self { memory_bytes: meminfo("MemAvailable")?, storage_bytes: file_system(data_dir)?.1 })
    }
}

/// `PRETTY_NAME` of os-release, which is a line of shell.
fn os_image(release: &str) -> String {
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.map_or("Linux", |name| name.trim_matches('"')).to_owned()
}

fn architecture(rust: &'static str) -> &'static str {
    match rust {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn meminfo(field: &str) -> Result<u64, HostError> {
    const PATH: &str = "/proc/meminfo";
    let failed = |source| HostError { path: PATH.to_owned(), source };
    let text = fs::read_to_string(PATH).map_err(failed)?;
    kibibytes(&text, field).ok_or_else(|| failed(io::Error::other(format!("there is no {field} in it"))))
}

fn kibibytes(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

/// Size of the file system that `path` is on, and what an ordinary user may still fill of it.
fn file_system(path: &Path) -> Result<(u64, u64), HostError> {
    let failed = |errno: rustix::io::Errno| HostError { path: path.display().to_string(), source: errno.into() };
    let found = rustix::fs::statvfs(path).map_err(failed)?;
    Ok((found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_the_host_are_read() {
        assert_eq!(
            os_image("NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n"),
            "Debian GNU/Linux 12 (bookworm)"
        );
        assert_eq!(os_image(""), "Linux");
        assert_eq!(kibibytes("MemTotal:       1024 kB\nMemAvailable:    512 kB\n", "MemAvailable"), Some(512 * 1024));
        assert_eq!(kibibytes("MemTotal: 1024 kB\n", "MemAvailable"), None);
    }

    #[test]
    fn this_host_can_be_described() {
        let facts = Facts::read(Path::new("/")).unwrap();
        assert!(facts.cpus > 0 && facts.memory_bytes > 0 && facts.storage_bytes > 0);
        assert!(!facts.boot_id.is_empty());
        assert!(Available::read(Path::new("/")).unwrap().memory_bytes <= facts.memory_bytes);
    }
}
