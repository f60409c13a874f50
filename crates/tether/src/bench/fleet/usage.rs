//! What processes of the control plane use: processor time and memory, as the kernel counts them.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};

/// The unit of processor time below /proc, the same on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// The processes that are looked at, by what they are called in the report.
pub(super) type Processes = BTreeMap<&'static str, u32>;

/// Milliseconds of processor time since each process started.
pub(super) fn processor_ms(processes: &Processes) -> Result<BTreeMap<&'static str, f64>> {
    processes.iter().map(|(name, pid)| Ok((*name, of_process(*pid)?))).collect()
}

/// How much of it each of so many things took, since `before`.
pub(super) fn each(
    processes: &Processes,
    before: &BTreeMap<&'static str, f64>,
    things: usize,
) -> Result<BTreeMap<String, f64>> {
    let now = processor_ms(processes)?;
    let share = |name: &str, ms: f64| (ms - before.get(name).unwrap_or(&0.0)) / things.max(1) as f64;
    Ok(now.iter().map(|(name, ms)| ((*name).to_owned(), (share(name, *ms) * 100.0).round() / 100.0)).collect())
}

fn of_process(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    let ticks = ticks(&text).with_context(|| format!("{path} does not say how long the process ran"))?;
    Ok(ticks as f64 * 1e3 / TICKS_PER_SECOND)
}

/// User and system time. The name of the process stands in parentheses and may hold anything.
fn ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

/// Resident memory in MiB.
pub(super) fn resident_mib(processes: &Processes) -> Result<BTreeMap<String, f64>> {
    processes.iter().map(|(name, pid)| Ok(((*name).to_owned(), resident_of(*pid)?))).collect()
}

fn resident_of(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    let kib = text.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix("kB")?.trim().parse().ok());
    let kib: f64 = kib.with_context(|| format!("{path} does not say how much memory is resident"))?;
    Ok(kib / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_process_is_found_behind_its_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194304 100 0 0 0 120 30 0 0 20 0 4 0 5 1 1";
        assert_eq!(ticks(stat), Some(150));
        assert_eq!(ticks("7 (a) S 1"), None);
        let own = Processes::from([("bench", std::process::id())]);
        assert!(resident_mib(&own).unwrap()["bench"] > 0.0);
        let before = processor_ms(&own).unwrap();
        assert!(each(&own, &before, 10).unwrap()["bench"] >= 0.0);
    }
}
