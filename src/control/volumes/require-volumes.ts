import type { Caller } from '../../domain/orgs/caller.ts'
import type { VolumeId } from '../../domain/ids.ts'
import { Problem } from '../../domain/problem.ts'
import { refusalProblem } from '../../domain/spec/refusal.ts'
import type { SandboxSpec } from '../../domain/spec/spec.ts'
import { usesVolumes, volumesUsedBy } from '../../domain/spec/spec-volumes.ts'
import * as volumeMounts from '../../store/volumes/volume-mounts.ts'
import type { BaseDeps } from '../deps.ts'

/**
 * The volumes that a spec reaches. Throws `invalid_sandbox_config` naming the mount whose volume is not there or is being
 * deleted, and the two mounts whose volumes lie on different workers: a sandbox runs on one. Costs nothing for a spec that
 * reaches none. That they stay is settled by the admission, which locks them.
 */
export async function requireVolumes(
  deps: Pick<BaseDeps, 'db'>,
  caller: Caller,
  spec: SandboxSpec,
): Promise<readonly VolumeId[]> {
  if (!usesVolumes(spec)) return []
  const wanted = volumesUsedBy(spec)
  const found = await deps.db.asOrg(caller.org_id, (q) => volumeMounts.resolve(q, caller.org_id, wanted))
  const byName = new Map(found.flatMap((volume) => (volume.name === null ? [] : [[volume.name, volume] as const])))
  for (const name of wanted.names) {
    const volume = byName.get(name)
    if (volume?.status === 'active') continue
    const seen = volume === undefined ? `'${name}', which is not there` : `'${name}', which is being deleted`
    const accepted = "the name of one of the organization's volumes"
    throw refusalProblem({ code: 'invalid_sandbox_config', field: fieldOf(spec, name), seen, accepted })
  }
  if (wanted.usesHost && !found.some(({ kind }) => kind === 'host'))
    throw new Error('an organization has no host volume')
  refuseTwoHomes(spec, found)
  return found.map(({ id }) => id)
}

function refuseTwoHomes(spec: SandboxSpec, found: readonly volumeMounts.MountedVolume[]): void {
  const [first, ...others] = found.filter(({ home_worker_id }) => home_worker_id !== null)
  const other = others.find(({ home_worker_id }) => home_worker_id !== first?.home_worker_id)
  if (first === undefined || other === undefined) return
  const fields = [first, other].map(({ name }) => fieldOf(spec, name))
  throw new Problem('invalid_sandbox_config', {
    message: `invalid sandbox config: ${fields.join(' and ')}: these volumes lie on different workers, and a sandbox runs on one`,
    details: {
      field: fields.join(', '),
      seen: [first, other].map(({ name }) => name ?? 'the host volume'),
      accepted: 'volumes that lie on the same worker; they get their place at their first use',
    },
  })
}

/** Which field of the spec reaches into a volume; null: the host volume. */
function fieldOf({ mounts, patches }: SandboxSpec, name: string | null): string {
  const index = mounts.findIndex((mount) =>
    name === null
      ? mount.type === 'bind' || mount.type === 'disk_image'
      : mount.type === 'named' && mount.name === name,
  )
  if (index >= 0) return `mounts[${String(index)}].${name === null ? 'host' : 'name'}`
  return `patches[${String(patches.findIndex(({ type }) => type === 'copy_file' || type === 'copy_dir'))}].src`
}
