import { join } from 'node:path'
import { runCommand, tryCommand } from '../../lib/run-command.ts'

/**
 * The btrfs(8) commands that volumes need, on one mounted file system. Quota groups are named `<level>/<id>`. Each
 * subvolume has a group of level 0 with its id. A group of a higher level counts the usage of all its members
 * (btrfs-quota(8)).
 */
export type Btrfs = {
  readonly root: string
  /** Lists all subvolumes: each path relative to the root, with the subvolume's id. */
  subvolumes(): Promise<ReadonlyMap<string, number>>
  /** Lists the ids of subvolumes that are deleted but not yet cleaned up. */
  deletedSubvolumeIds(): Promise<ReadonlySet<number>>
  /** Lists the quota groups. With `isSynced`, the usage includes all data written so far. */
  groups(options: { readonly isSynced: boolean }): Promise<ReadonlyMap<string, QuotaGroup>>
  /** Creates a subvolume. Its own quota group becomes a member of `group`. */
  createSubvolume(path: string, group: string | null): Promise<void>
  /** Creates a read-only subvolume with the content that another one has now. Its quota group becomes a member of `groups`. */
  snapshotSubvolume(of: string, path: string, groups: readonly string[]): Promise<void>
  /** Deletes a subvolume durably, so that it doesn't reappear after a power failure. */
  deleteSubvolume(path: string): Promise<void>
  createGroup(group: string): Promise<void>
  /**
   * Destroys a quota group. False when the kernel has already destroyed the group, or is still cleaning up its
   * subvolume.
   */
  destroyGroup(group: string): Promise<boolean>
  assignGroup(member: string, parent: string): Promise<void>
  setLimit(group: string, bytes: number | null): Promise<void>
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

/** Creates the commands for the file system mounted at `root`. */
export function makeBtrfs(root: string): Btrfs {
  const run = async (args: readonly string[]): Promise<string> =>
    (await runCommand('btrfs', args, { timeoutMs: TIMEOUT_MS })).stdout
  return {
    root,
    async subvolumes() {
      const found = parseSubvolumes(await run(['subvolume', 'list', root]))
      return new Map(found.map(({ id, path }) => [path, id]))
    },
    async deletedSubvolumeIds() {
      return new Set(parseSubvolumes(await run(['subvolume', 'list', '-d', root])).map(({ id }) => id))
    },
    async groups({ isSynced }) {
      return parseGroups(await run(['qgroup', 'show', '--raw', '-r', '-p', ...(isSynced ? ['--sync'] : []), root]))
    },
    async createSubvolume(path, group) {
      await run(['subvolume', 'create', ...(group === null ? [] : ['-i', group]), join(root, path)])
    },
    async snapshotSubvolume(of, path, groups) {
      const members = groups.flatMap((group) => ['-i', group])
      await run(['subvolume', 'snapshot', '-r', ...members, join(root, of), join(root, path)])
    },
    async deleteSubvolume(path) {
      await run(['subvolume', 'delete', '--commit-after', join(root, path)])
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
    async setLimit(group, bytes) {
      await run(['qgroup', 'limit', bytes === null ? 'none' : String(bytes), group, root])
    },
  }
}

/** Parses lines such as `ID 257 gen 9 top level 256 path a/b`. */
function parseSubvolumes(text: string): readonly { readonly id: number; readonly path: string }[] {
  return [...text.matchAll(/^ID (\d+) gen \d+ (?:cgen \d+ )?top level \d+ path (.*)$/gm)].map(([, id, path]) => ({
    id: Number(id),
    path: path ?? '',
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
