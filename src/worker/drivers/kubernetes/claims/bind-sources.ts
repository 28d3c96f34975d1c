import { VolumeFileError, type VolumeFiles } from '../../../../contract/volumes/volume-protocol.ts'
import type { SandboxSpec } from '../../../../domain/spec/spec.ts'
import { StartError } from '../../../start-error.ts'
import { bindSubPath } from '../spec/mount-paths.ts'

type SourceFiles = Pick<VolumeFiles, 'exists' | 'mkdir'>

/**
 * Makes the folders of bind mounts that the organization's default volume lacks, as other workers do. The kubelet would make them too,
 * but for root alone. May be repeated. Rejects with `StartError` of reason `mount` for a path that is neither a folder nor a file, or that
 * leads out of the volume.
 */
export async function prepareBindSources(files: SourceFiles, { mounts }: Pick<SandboxSpec, 'mounts'>): Promise<void> {
  for (const [index, mount] of mounts.entries()) {
    if (mount.type !== 'bind') continue
    const field = `mounts[${String(index)}]`
    const path = `/${bindSubPath(mount, field)}`
    if (path === '/') continue
    try {
      if (!(await files.exists(path))) await files.mkdir(path) // refuses what is there and is neither a folder nor a file
    } catch (error) {
      if (!(error instanceof VolumeFileError)) throw error
      throw new StartError('mount', `${field}.host '${mount.host}': ${error.message}`, error)
    }
  }
}
