import type { RunVolume, DesiredRun } from '../../../contract/workers/worker-protocol.ts'
import type { VolumeStorage } from '../../volumes/volume-storage.ts'
import { BlockedPathError } from './root-tree.ts'

/** The volumes that a run may use. Each volume is opened once, on its first use. */
export type RunVolumes = {
  /**
   * Opens the organization's default volume and returns its folder. Rejects with `BlockedPathError` if the run doesn't
   * have it.
   */
  default(): Promise<string>
  /**
   * Opens the volume that the spec mounts by this name and returns its folder. Rejects with `BlockedPathError` if the run has
   * no volume of that name.
   */
  named(name: string): Promise<string>
  /** Runs `work`, which uses files of the default volume by their paths. */
  using<T>(work: () => Promise<T>): Promise<T>
}

/**
 * Gives access to the volumes that the control plane listed for a desired run. Opens no volume before its first use.
 */
export function openRunVolumes(storage: Pick<VolumeStorage, 'open' | 'folderLimits'>, desired: DesiredRun): RunVolumes {
  const opened = new Map<RunVolume, Promise<string>>()
  const open = async (volume: RunVolume | undefined, missing: string): Promise<string> => {
    if (volume === undefined) throw new BlockedPathError(missing)
    const folder = opened.get(volume) ?? storage.open(volume)
    opened.set(volume, folder)
    return await folder
  }
  const host = desired.volumes.find((volume) => volume.kind === 'host')
  return {
    using: (work) =>
      host === undefined || storage.folderLimits === null ? work() : storage.folderLimits.using(host, work),
    default: () => open(host, "the organization's default volume does not exist"),
    named: (name) =>
      open(
        desired.volumes.find((volume) => volume.kind === 'managed' && volume.name === name),
        `the volume '${name}' does not exist`,
      ),
  }
}
