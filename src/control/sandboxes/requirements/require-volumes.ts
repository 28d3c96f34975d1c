import type { Caller } from '../../../domain/orgs/caller.ts'
import type { VolumeId } from '../../../domain/ids.ts'
import { Problem } from '../../../domain/problem.ts'
import { refusalProblem } from '../../../domain/refusal.ts'
import type { SandboxSpec } from '../../../domain/spec/spec.ts'
import { usesVolumes, volumesUsedBy } from '../../../domain/spec/spec-volumes.ts'
import * as volumeMounts from '../../../store/volumes/volume-mounts.ts'
import type { BaseDeps } from '../../deps.ts'

/**
 * Finds the volumes that a spec uses. Throws `invalid_sandbox_config` for a mount whose volume is missing or being
 * deleted. Throws it too for two mounts with different home workers, because a sandbox runs on one worker. Runs no
 * query for a spec without volumes. Volumes may still be deleted afterwards, because only the admission locks them.
 */
export async function requireVolumes(
  deps: Pick<BaseDeps, 'db'>,
  caller: Caller,
  spec: SandboxSpec,
): Promise<readonly VolumeId[]> {
  if (!usesVolumes(spec)) return []
  const used = volumesUsedBy(spec)
  const found = await deps.db.asOrg(caller.org_id, (q) => volumeMounts.resolve(q, caller.org_id, used))
  const byName = new Map(found.flatMap((volume) => (volume.name === null ? [] : [[volume.name, volume] as const])))
  for (const name of used.names) {
    const volume = byName.get(name)
    if (volume?.status === 'active') continue
    const seen = volume === undefined ? `'${name}', which does not exist` : `'${name}', which is being deleted`
    const accepted = "the name of one of the organization's volumes"
    throw refusalProblem({ code: 'invalid_sandbox_config', field: fieldOf(spec, name), seen, accepted })
  }
  if (used.usesDefault && !found.some(({ kind }) => kind === 'host'))
    throw new Error('an organization has no default volume')
  refuseTwoHomes(spec, found)
  return found.map(({ id }) => id)
}

function refuseTwoHomes(spec: SandboxSpec, found: readonly volumeMounts.MountedVolume[]): void {
  const [first, ...others] = found.filter(({ home_worker_id }) => home_worker_id !== null)
  const other = others.find(({ home_worker_id }) => home_worker_id !== first?.home_worker_id)
  if (first === undefined || other === undefined) return
  const fields = [first, other].map(({ name }) => fieldOf(spec, name))
  throw new Problem('invalid_sandbox_config', {
    message: `invalid sandbox config: ${fields.join(' and ')}: these volumes are on different workers, and a sandbox runs on one`,
    details: {
      field: fields.join(', '),
      seen: [first, other].map(({ name }) => name ?? 'the default volume'),
      accepted: 'volumes on the same worker; a volume gets its worker at its first use',
    },
  })
}

/** The field of the spec that uses the volume with this name. Null means the default volume. */
function fieldOf({ mounts, patches }: SandboxSpec, name: string | null): string {
  const index = mounts.findIndex((mount) =>
    name === null
      ? mount.type === 'bind' || mount.type === 'disk_image'
      : mount.type === 'named' && mount.name === name,
  )
  if (index >= 0) return `mounts[${String(index)}].${name === null ? 'host' : 'name'}`
  return `patches[${String(patches.findIndex(({ type }) => type === 'copy_file' || type === 'copy_dir'))}].src`
}
