import type { SandboxSpec } from '../../../../domain/spec/spec.ts'
import { StartError } from '../../../start-error.ts'
import { CLAIM_GROUP, volumeLabel, type RunClaim } from '../claim.ts'
import { bindSubPath, mountPathOf } from './mount-paths.ts'

/** What a Pod has because its sandbox mounts volumes. All empty without such mounts. */
export type PodClaims = {
  readonly labels: Readonly<Record<string, string>>
  readonly volumes: readonly object[]
  readonly volumeMounts: readonly object[]
  /** The fields of the Pod's `spec`. */
  readonly spec: object
  /** The fields of the Pod's security context. */
  readonly security: object
}

/** Without a group of its own, a new volume would belong to root, which no process of a Pod is. */
export const CLAIM_SECURITY = { fsGroup: CLAIM_GROUP, fsGroupChangePolicy: 'OnRootMismatch' }

/**
 * The claims of a Pod, and their mounts, one for each `named` and `bind` mount of the spec. The kubelet opens the path of a bind mount step
 * by step, and refuses one that leads out of the volume. Processes have no capabilities and gain none, so
 * `nosuid` and `nodev` always hold. A claim that only one node may mount keeps the Pod on the node that has it. Throws `StartError`
 * for what a Pod can't have.
 */
export function podClaimsOf({ mounts }: SandboxSpec, claims: readonly RunClaim[]): PodClaims {
  const volumeMounts = mounts.flatMap((mount, index) => {
    if (mount.type !== 'named' && mount.type !== 'bind') return []
    const field = `mounts[${String(index)}]`
    const name = mount.type === 'named' ? mount.name : null
    const found = claims.findIndex(({ volume }) => volume.name === name)
    if (found === -1) throw new StartError('mount', `${field}: the volume '${name ?? 'default'}' does not exist`)
    const subPath = mount.type === 'named' ? '' : bindSubPath(mount, field)
    const whole = { name: nameOf(found), mountPath: mountPathOf(mount, field), readOnly: mount.options.readonly }
    return [subPath === '' ? whole : { ...whole, subPath }]
  })
  return {
    labels: Object.fromEntries(claims.map(({ volume }) => [volumeLabel(volume.volume_id), ''])),
    volumes: claims.map(({ claimName }, index) => ({ name: nameOf(index), persistentVolumeClaim: { claimName } })),
    volumeMounts,
    spec: affinityOf(claims),
    security: claims.length === 0 ? {} : CLAIM_SECURITY,
  }
}

function nameOf(index: number): string {
  return `volume-${String(index)}`
}

/** Requires the node that has the claims mounted. While none is known, it requires the node of whoever else mounts them. */
export function affinityOf(claims: readonly RunClaim[]): object {
  const ofOneNode = claims.filter(({ isShared }) => !isShared)
  const nodes = new Set(ofOneNode.flatMap(({ node }) => node ?? []))
  if (nodes.size > 1) {
    const names = ofOneNode.map(({ volume }) => `'${volume.name ?? 'default'}'`).join(', ')
    throw new StartError('mount', `the volumes ${names} are in use on different nodes, and each only on one at a time`)
  }
  const [node] = nodes
  const required = (terms: object): object => ({ requiredDuringSchedulingIgnoredDuringExecution: terms })
  if (node !== undefined) {
    const matchFields = [{ key: 'metadata.name', operator: 'In', values: [node] }]
    return { affinity: { nodeAffinity: required({ nodeSelectorTerms: [{ matchFields }] }) } }
  }
  if (ofOneNode.length === 0) return {}
  const terms = ofOneNode.map(({ volume }) => ({
    labelSelector: { matchExpressions: [{ key: volumeLabel(volume.volume_id), operator: 'Exists' }] },
    topologyKey: 'kubernetes.io/hostname',
  }))
  return { affinity: { podAffinity: required(terms) } }
}
