/** SQL about the disks that sandboxes have on workers. */

/**
 * The disks on workers. A sandbox's disk counts from the placement of its first run until the sandbox is deleted and its
 * last run has ended, whether the sandbox runs or not. The index `sandboxes_disks` answers the first part alone.
 */
export const DISKS = `SELECT home_worker_id AS worker_id, disk_size_mib FROM sandboxes
    WHERE home_worker_id IS NOT NULL AND visible_until IS NULL
  UNION ALL
  SELECT r.worker_id, s.disk_size_mib FROM runs r JOIN sandboxes s ON s.id = r.sandbox_id
    WHERE r.ended_at IS NULL AND r.worker_id IS NOT NULL AND r.stop_requested_at IS NOT NULL AND s.visible_until IS NOT NULL`

/** The sums of `DISKS`: the sizes that sandboxes name, and the number of disks with the worker's default size. */
export const DISK_SUMS = `coalesce(sum(disk_size_mib), 0)::float8 AS sized_disks_mib,
  (count(*) - count(disk_size_mib))::integer AS default_disks`

/** The disk capacity of worker `w` in MiB, and the size of its default disks. Earlier versions reported neither. */
export const DISK_CAPACITY = `CASE WHEN w.driver ? 'default_disk_mib' THEN w.disk_mib::float8 END AS disk_mib,
  coalesce((w.driver ->> 'default_disk_mib')::integer, 0) AS default_disk_mib`
