import type { Caller } from '../../domain/orgs/caller.ts'
import type { VolumeId } from '../../domain/ids.ts'
import { Problem } from '../../domain/problem.ts'
import type { Volume } from '../../domain/volumes/volume.ts'
import * as volumes from '../../store/volumes/volumes.ts'
import type { BaseDeps } from '../deps.ts'

/** The id by which a request identifies a volume, or `default` for the default volume of its organization. */
export type VolumeRef = { readonly id: VolumeId } | 'default'

type ReadDeps = Pick<BaseDeps, 'db'>

/** All volumes of the organization: first the default volume, then the others from oldest to newest. */
export async function listVolumes(deps: ReadDeps, caller: Caller): Promise<readonly Volume[]> {
  return deps.db.asOrg(caller.org_id, (q) => volumes.list(q, caller.org_id))
}

/** A volume of the organization with its home. Throws `volume_not_found`, also for another organization's volume. */
export async function getVolume(deps: ReadDeps, caller: Caller, ref: VolumeRef): Promise<volumes.PlacedVolume> {
  const org = caller.org_id
  const found = await deps.db.asOrg(org, (q) =>
    ref === 'default' ? volumes.findDefaultVolume(q, org) : volumes.find(q, org, ref.id),
  )
  if (found === null) throw new Problem('volume_not_found')
  return found
}
