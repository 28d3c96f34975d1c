import { existsSync } from 'node:fs'
import { dirname, join } from 'node:path'
import type { Config } from '../../config.ts'
import { describeOverlaps, parseAccounts, parseSubordinateIds } from '../../domain/workers/id-range.ts'
import { readFileOrNull } from '../../lib/files.ts'
import { makeLog } from '../../lib/log.ts'
import { findMappingFlaws } from '../../worker/drivers/oci/users/mapping-flaws.ts'
import { describeUserIds } from '../../worker/drivers/oci/users/sandbox-users.ts'
import { makeUserNamespaces } from '../../worker/drivers/oci/users/user-namespaces.ts'
import { localHostCommands } from '../../worker/processes/system-calls.ts'
import { chooseStorage } from '../../worker/volumes/open-volume-storage.ts'
import { imagesFolder, volumeStorageConfig } from './worker-storage.ts'

/** The files of the host that give ids to others, with their parsers. */
const OWNER_FILES = [
  ['/etc/subuid', parseSubordinateIds],
  ['/etc/subgid', parseSubordinateIds],
  ['/etc/passwd', parseAccounts],
  ['/etc/group', parseAccounts],
] as const

/** The most overlaps to list. */
const OVERLAPS_LISTED = 5

/**
 * Describes the host's ids for sandboxes. Rejects if others own ids of the range, or if sandboxes must share ids because mounts
 * can't be idmapped; the message says which, and why.
 */
export async function checkUserIds(config: Config): Promise<string> {
  const { uidRange } = config
  const range = `SANDYARD_UID_RANGE=${String(uidRange.first)}-${String(uidRange.last)}`
  const owners = await Promise.all(
    OWNER_FILES.map(async ([file, parse]) => parse((await readFileOrNull(file)) ?? '', file)),
  )
  const overlaps = describeOverlaps(uidRange, owners.flat())
  if (overlaps.length > 0) throw new Error(`${range} overlaps ${overlaps.slice(0, OVERLAPS_LISTED).join(', ')}`)
  if (process.getuid?.() !== 0) return `${range} belongs to nobody else`
  const flaws = await tryIdmappedMounts(config)
  if (flaws.rootfs !== null) throw new Error(describeUserIds(flaws))
  return `${range} belongs to nobody else; each sandbox has ${describeUserIds(flaws)}`
}

async function tryIdmappedMounts(config: Config): ReturnType<typeof findMappingFlaws> {
  const storage = await chooseStorage(volumeStorageConfig(config))
  const images = existingAncestor(imagesFolder(config))
  const folders = { images, volumes: storage.kind === 'folders' ? existingAncestor(storage.root) : images }
  const scratch = join(existingAncestor(config.dataDir), `idmap-trial-${String(process.pid)}`)
  const namespaces = makeUserNamespaces(makeLog('silent'), () => {
    // the trial itself rejects
  })
  try {
    return await findMappingFlaws({ commands: localHostCommands, namespaces, folders, scratch })
  } finally {
    namespaces.close()
  }
}

/** Returns the folder, or its nearest parent that exists: before the first start, the data folder doesn't. */
function existingAncestor(folder: string): string {
  return existsSync(folder) ? folder : existingAncestor(dirname(folder))
}
