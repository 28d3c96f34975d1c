import { lstatSync, readdirSync } from 'node:fs'
import { join } from 'node:path'

/** Folders of the host whose own entries no sandbox may change. `/dev/shm` and `/dev/pts` have entries that come and go. */
const FOLDERS = ['/', '/dev', '/etc', '/usr', '/usr/bin', '/var', '/var/lib', '/root', '/home'] as const

/** The owner and mode of an entry, such as `0:0 20666`. */
export type HostInodes = ReadonlyMap<string, string>

/** Reads the owner and mode of every entry of the host's own folders. */
export function readHostInodes(): HostInodes {
  const paths = FOLDERS.flatMap((folder) => [folder, ...readdirSync(folder).map((name) => join(folder, name))])
  return new Map(
    paths.flatMap((path) => {
      const stat = lstatSync(path, { throwIfNoEntry: false })
      return stat === undefined ? [] : [[path, `${String(stat.uid)}:${String(stat.gid)} ${stat.mode.toString(8)}`]]
    }),
  )
}

/** The highest id of a user that a host creates for its own accounts (useradd(8), UID_MAX). Sandboxes use higher ids. */
const LAST_HOST_ID = 60_000

/**
 * Lists the entries that a user of a sandbox has taken since `before`, and the device nodes whose owner or mode changed. Programs
 * of the host may change entries of their own, so other changes are not listed.
 */
export function findTakenInodes(before: HostInodes, after: HostInodes): readonly string[] {
  return [...after].flatMap(([path, state]) => {
    const earlier = before.get(path)
    if (state === earlier) return []
    const isTaken = Number(state.split(':')[0]) > LAST_HOST_ID
    const isChangedDevice = path.startsWith('/dev/') && earlier !== undefined
    return isTaken || isChangedDevice ? [`${path}: ${earlier ?? 'absent'} became ${state}`] : []
  })
}
