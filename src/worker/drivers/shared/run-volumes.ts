import type { RunVolume, DesiredRun } from '../../../contract/workers/worker-protocol.ts'
import type { VolumeStorage } from '../../volumes/volume-storage.ts'
import { BlockedPathError } from './root-tree.ts'

/** The folders of the volumes that a run may reach. Each is opened once, when it is first asked for. */
export type RunVolumes = {
  /** The organization's host volume. Rejects with `BlockedPathError` when the run has none. */
  host(): Promise<string>
  /** The volume that the spec mounts under `name`. Rejects with `BlockedPathError` when the run has none of that name. */
  named(name: string): Promise<string>
}

/** The volumes that the control plane listed with a desired run. Opens none yet. */
export function openRunVolumes(storage: Pick<VolumeStorage, 'open'>, desired: DesiredRun): RunVolumes {
  const opened = new Map<RunVolume, Promise<string>>()
  const open = async (volume: RunVolume | undefined, missing: string): Promise<string> => {
    if (volume === undefined) throw new BlockedPathError(missing)
    const folder = opened.get(volume) ?? storage.open(volume)
    opened.set(volume, folder)
    return await folder
  }
  return {
    host: () =>
      open(
        desired.volumes.find((volume) => volume.kind === 'host'),
        "the organization's default volume is not there",
      ),
    named: (name) =>
      open(
        desired.volumes.find((volume) => volume.kind === 'managed' && volume.name === name),
        `the volume '${name}' is not there`,
      ),
  }
}
