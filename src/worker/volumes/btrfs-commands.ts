import { join } from 'node:path'
import { runCommand, tryCommand } from '../../lib/run-command.ts'

/**
 * The btrfs(8) commands that volumes need, on one mounted file system. Quota groups are named `<level>/<id>`. Each
 * subvolume has a group of level 0 with its id. A group of a higher level counts the usage of all its members
 * (btrfs-quota(8)).
 */
export type Btrfs = {
  readonly root: string
  /** Lists all subvolumes, also those that are deleted but not yet cleaned up. */
  subvolumes(): Promise<readonly Subvolume[]>
  /** Returns the id of the subvolume that has a file or folder, given by any path. */
  subvolumeIdOf(path: string): Promise<number>
  /** Lists the quota groups. With `isSynced`, the usage includes all data written so far. */
  groups(options: { readonly isSynced: boolean }): Promise<ReadonlyMap<string, QuotaGroup>>
  /** Creates a subvolume at a path in the file system. Its own quota group becomes a member of `groups`. */
  createSubvolume(path: string, groups: readonly string[]): Promise<void>
  /**
   * Creates a read-only subvolume at `path` with the content that another one has now. Its quota group becomes a member of
   * `groups`. If there are subvolumes in the other one, `path` becomes a mount point, and their content is mounted beneath it.
   * Returns how many of them are missing, because a sandbox moved them meanwhile.
   */
  snapshotSubvolume(of: string, path: string, groups: readonly string[]): Promise<number>
  /** Deletes a subvolume durably, so that it doesn't reappear after a power failure. It must contain no other one. */
  deleteSubvolume(id: number): Promise<void>
  /** Lets two folders swap their places, at once. */
  exchange(path: string, other: string): Promise<void>
  /** Commits everything. The groups count shared blocks only from then on. */
  sync(): Promise<void>
  createGroup(group: string): Promise<void>
  /**
   * Destroys a quota group. False when the kernel has already destroyed the group, or is still cleaning up its
   * subvolume.
   */
  destroyGroup(group: string): Promise<boolean>
  assignGroup(member: string, parent: string): Promise<void>
  removeFromGroup(member: string, parent: string): Promise<void>
  setLimit(group: string, bytes: number | null): Promise<void>
}

export type Subvolume = {
  readonly id: number
  /** Where it is: in which subvolume, the inode of its folder there, and its name. Null if it is deleted. */
  readonly place: { readonly parentId: number; readonly folder: number; readonly name: string } | null
}

export type QuotaGroup = {
  readonly usedBytes: number
  readonly limitBytes: number | null
  readonly parents: readonly string[]
}

/**
 * The time limit for a command. A command that creates or deletes a subvolume waits for a commit, and the commit waits
 * for the disk.
 */
const TIMEOUT_MS = 120_000
const SUBVOLUMES_SCRIPT = join(import.meta.dirname, '../perl/btrfs-subvolumes.pl')

/** Creates the commands for the file system mounted at `root`. */
export function makeBtrfs(root: string): Btrfs {
  const run = async (args: readonly string[]): Promise<string> =>
    (await runCommand('btrfs', args, { timeoutMs: TIMEOUT_MS })).stdout
  const script = async (args: readonly string[]): Promise<string> =>
    (await runCommand('perl', [SUBVOLUMES_SCRIPT, ...args], { timeoutMs: TIMEOUT_MS })).stdout
  return {
    root,
    async subvolumes() {
      return parseSubvolumes(await script(['list', root]))
    },
    async subvolumeIdOf(path) {
      return Number(await run(['inspect-internal', 'rootid', path]))
    },
    async groups({ isSynced }) {
      return parseGroups(await run(['qgroup', 'show', '--raw', '-r', '-p', ...(isSynced ? ['--sync'] : []), root]))
    },
    async createSubvolume(path, groups) {
      await run(['subvolume', 'create', ...membershipOf(groups), path])
    },
    async snapshotSubvolume(of, path, groups) {
      await run(['subvolume', 'snapshot', '-r', ...membershipOf(groups), of, path])
      return Number(await script(['graft', path, of, ...groups]))
    },
    async deleteSubvolume(id) {
      await run(['subvolume', 'delete', '--commit-after', '--subvolid', String(id), root])
    },
    async exchange(path, other) {
      await script(['exchange', path, other])
    },
    async sync() {
      await run(['filesystem', 'sync', root])
    },
    async createGroup(group) {
      await run(['qgroup', 'create', group, root])
    },
    async destroyGroup(group) {
      return (await tryCommand('btrfs', ['qgroup', 'destroy', group, root], { timeoutMs: TIMEOUT_MS })).code === 0
    },
    async assignGroup(member, parent) {
      await run(['qgroup', 'assign', member, parent, root])
    },
    async removeFromGroup(member, parent) {
      await run(['qgroup', 'remove', member, parent, root])
    },
    async setLimit(group, bytes) {
      await run(['qgroup', 'limit', bytes === null ? 'none' : String(bytes), group, root])
    },
  }
}

function membershipOf(groups: readonly string[]): readonly string[] {
  return groups.flatMap((group) => ['-i', group])
}

/** Parses the lines of the script. */
function parseSubvolumes(text: string): readonly Subvolume[] {
  return [...text.matchAll(/^(\d+)(?: (\d+) (\d+) ([0-9a-f]+))?$/gm)].map(([, id, parentId, folder, name = '']) => ({
    id: Number(id),
    place:
      parentId === undefined
        ? null
        : { parentId: Number(parentId), folder: Number(folder), name: Buffer.from(name, 'hex').toString() },
  }))
}

/**
 * Parses lines with the columns group, referenced, exclusive, limit of referenced, and parents. Further columns depend
 * on the version of btrfs-progs.
 */
function parseGroups(text: string): ReadonlyMap<string, QuotaGroup> {
  const rows = [...text.matchAll(/^(\d+\/\d+)\s+(\d+)\s+\d+\s+(\d+|none)\s+(\S+)/gm)]
  return new Map(
    rows.map(([, group = '', used, limit, parents = '']) => [
      group,
      {
        usedBytes: Number(used),
        limitBytes: limit === 'none' ? null : Number(limit),
        parents: /^[\d/,]+$/.test(parents) ? parents.split(',') : [],
      },
    ]),
  )
}
