import { CommandError } from '../../../../lib/run-command.ts'
import type { HostCommands, SystemCall } from '../../../processes/system-calls.ts'
import { mountIdMap } from './id-maps.ts'
import type { UserNamespaces } from './user-namespaces.ts'

/** The reasons why mounts of image layers and disks, or those of volumes, can't be idmapped. Null where they can. */
export type MappingFlaws = { readonly rootfs: string | null; readonly volumes: string | null }

/** The folders whose mounts would be idmapped. */
export type MappedFolders = {
  /** The folder of the image store. */
  readonly images: string
  readonly volumes: string
}

type Trial = {
  readonly commands: Pick<HostCommands, 'callSystem'>
  readonly namespaces: UserNamespaces
  readonly folders: MappedFolders
  /** A folder for the trial's own mounts. Its parent must exist. */
  readonly scratch: string
}

/** Any two ranges that don't overlap. */
const TRIAL_MAP = mountIdMap(100_000, 200_000)

/**
 * Finds out whether this kernel can show files with the ids of each sandbox, by idmapped mounts (Linux 5.19). It makes such
 * mounts of each folder's file system, because some file systems don't support them. Leaves nothing behind.
 */
export async function findMappingFlaws({ commands, namespaces, folders, scratch }: Trial): Promise<MappingFlaws> {
  const map = await namespaces.create({ owner: 0, idMap: TRIAL_MAP, limits: null })
  const flawOf = async (call: SystemCall): Promise<string | null> => {
    try {
      await commands.callSystem(call)
      return null
    } catch (error) {
      if (!(error instanceof CommandError)) throw error
      return error.result?.stderr.trim() ?? error.message
    }
  }
  try {
    const overlay = await flawOf(['try-idmapped-layers', map.path, scratch])
    const [rootfs, volumes] = await Promise.all([
      overlay ?? flawOf(['try-idmap', map.path, folders.images]),
      flawOf(['try-idmap', map.path, folders.volumes]),
    ])
    return { rootfs, volumes }
  } finally {
    map.close()
  }
}
