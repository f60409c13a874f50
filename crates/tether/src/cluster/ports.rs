//! Whether a port of the loopback is free, and if not, whose it is.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener};

/// The state of a listening socket in `/proc/net/tcp`.
const LISTEN: &str = "0A";

/// Somebody else listens there.
#[derive(Debug, thiserror::Error)]
#[error(
    "--api-port {port}: 127.0.0.1:{port} is in use by {}; stop it, or choose another port (--api-port 0 takes a free one)",
    owner.as_deref().unwrap_or("another process")
)]
pub(crate) struct PortInUse {
    port: u16,
    /// `name (pid 123)`, if it is one of our user's processes.
    owner: Option<String>,
}

/// A port that nobody uses now.
pub(crate) fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Fails if `port` cannot be listened on.
pub(crate) fn check_port(port: u16) -> Result<io::Result<()>, PortInUse> {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
        Ok(_) => Ok(Ok(())),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(PortInUse { port, owner: owner(port) }),
        Err(error) => Ok(Err(error)),
    }
}

/// The process that listens on `port`, as far as this user may know.
fn owner(port: u16) -> Option<String> {
    let mut inodes = BTreeSet::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        inodes.extend(listeners(&fs::read_to_string(table).unwrap_or_default(), port));
    }
    let sockets: BTreeSet<_> = inodes.into_iter().map(|inode| format!("socket:[{inode}]")).collect();
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let pid = pids.find(|pid| {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut links = descriptors.filter_map(|entry| fs::read_link(entry.path()).ok());
        links.any(|link| link.to_str().is_some_and(|link| sockets.contains(link)))
    })?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some(format!("{} (pid {pid})", name.trim()))
}

/// The inodes of sockets that listen on `port`, in the text of `/proc/net/tcp`.
fn listeners(table: &str, port: u16) -> Vec<u64> {
    let suffix = format!(":{port:04X}");
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row.len() > 9 && row[1].ends_with(&suffix) && row[3] == LISTEN)
        .filter_map(|row| row[9].parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_has_an_owner() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let error = check_port(port).unwrap_err().to_string();
        assert!(error.starts_with(&format!("--api-port {port}: 127.0.0.1:{port} is in use by ")), "{error}");
        assert!(error.contains(&format!("(pid {})", std::process::id())), "{error}");
        drop(listener);
        // A process that another test is about to start holds a copy of the socket until it runs its program.
        let free = (0..200).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            check_port(port).is_ok()
        });
        assert!(free, "port {port} stays in use");
    }

    #[test]
    fn only_listening_sockets_of_that_port_count() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             0: 0100007F:192B 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4711 1\n\
             1: 0100007F:192B 0100007F:C001 01 00000000:00000000 00:00000000 00000000 0 0 4712 1\n\
             2: 0100007F:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4713 1\n";
        assert_eq!(listeners(table, 6443), [4711]);
    }
}
