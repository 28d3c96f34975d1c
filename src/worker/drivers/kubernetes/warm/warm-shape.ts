import type { DesiredRun } from '../../../../contract/workers/worker-protocol.ts'
import type { OrgId } from '../../../../domain/ids.ts'
import type { RunPolicy } from '../network/run-policy.ts'
import { LABELS } from '../pod.ts'
import { pullCredentialOf } from '../pull-secret.ts'
import type { ServedImages } from '../served-images.ts'
import { makePod, type PodSettings } from '../spec/pod-spec.ts'
import { StartError } from '../../../start-error.ts'

/** What all runs have in common that may take the same warm Pod. */
export type WarmShape = {
  /** Two runs have the same shape if and only if they have the same key. */
  readonly key: string
  readonly org_id: OrgId
  readonly namespace: string
  readonly vcpus: number
  readonly memoryMib: number
  /** The policy of the Pod's network. Null: the cluster decides. */
  readonly policy: RunPolicy | null
  /** The image, for messages. */
  readonly image: string
  /** The content of the Pod's image pull Secret. Null: the Pod has none. */
  readonly credential: string | null
  /** The Pod of a name. Its Secret has the same name. */
  readonly pod: (name: string) => object
}

type ShapeDeps = {
  readonly settings: PodSettings
  readonly images: Pick<ServedImages, 'isServed'> | null
}

/**
 * Returns the shape of a run, or null if no warm Pod can serve the run. The key is the Pod that a plain start makes, without the run's
 * names, and the organization. So whatever a later version puts into Pods is in the key.
 */
export function warmShapeOf(desired: DesiredRun, namespace: string, { settings, images }: ShapeDeps): WarmShape | null {
  const { spec, org_id, registry_auth } = desired
  // Process 1 of a warm Pod waits for commands. An image that must be pulled again, or with a credential of its organization, is the
  // plain start's: another sandbox may have another one, and its right may end.
  if (spec.runtime.cmd !== null || spec.mounts.length > 0) return null
  if (spec.pull_policy === 'always' || (registry_auth !== null && images?.isServed(desired) !== true)) return null
  const made = makeIfPossible(desired, settings)
  if (made === null) return null
  const { metadata, spec: podSpec, ...rest } = made
  const { imagePullSecrets: secrets, ...named } = podSpec
  const policy = settings.policyOf?.(desired) ?? null
  const labels = { [LABELS.owner]: settings.owner, ...(policy === null ? {} : { [LABELS.network]: policy.label }) }
  return {
    key: JSON.stringify([namespace, org_id, secrets !== undefined, metadata.annotations, policy?.label, named, rest]),
    org_id,
    namespace,
    vcpus: spec.resources.vcpus,
    memoryMib: spec.resources.memory_mib,
    policy,
    image: spec.image,
    credential: pullCredentialOf(desired),
    pod: (name) => ({
      ...rest,
      metadata: { ...metadata, name, labels },
      spec: { ...named, ...(secrets === undefined ? {} : { imagePullSecrets: [{ name }] }) },
    }),
  }
}

type MadePod = {
  readonly metadata: { readonly annotations?: object }
  readonly spec: { readonly imagePullSecrets?: readonly object[] }
}

/** Null if a Pod can't be what the run asks for. The plain start says why. */
function makeIfPossible(desired: DesiredRun, settings: PodSettings): MadePod | null {
  try {
    return makePod(desired, settings) as MadePod // a Pod has both
  } catch (error) {
    if (error instanceof StartError) return null
    throw error
  }
}
