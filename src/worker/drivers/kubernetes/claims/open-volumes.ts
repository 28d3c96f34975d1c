import type { ApiClient } from '../../../kubernetes/api-client.ts'
import type { KubernetesDriverInput } from '../context.ts'
import { FILES_CONTAINER } from '../files/files-pod.ts'
import { makeFilesPods } from '../files/files-pods.ts'
import { makeAgentLinks } from '../link/agent-links.ts'
import { makeStartPace } from '../link/start-pace.ts'
import type { SandboxNamespaces } from '../namespaces/namespaces.ts'
import type { Pods } from '../pods.ts'
import { TOOLBOX_IN_IMAGE } from '../helper-image.ts'
import type { PodSettings } from '../spec/pod-spec.ts'
import { openClaims, type Claims } from './claims.ts'

/** The volumes of a worker, and the Pods that serve their files. */
export type OpenVolumes = {
  readonly claims: Claims
  /** Whether a Pod without a run serves files, and must stay. */
  ownsPod(name: string): boolean
  /** Ends the Pods that serve files. */
  close(): Promise<void>
}

type OpenVolumesDeps = Pick<
  KubernetesDriverInput,
  'dir' | 'namespace' | 'claimSettings' | 'pacer' | 'random' | 'clock' | 'log'
> &
  Pick<KubernetesDriverInput, 'filesIdleMs' | 'filesStartLimitMs' | 'tools'> & {
    readonly client: ApiClient
    readonly pods: Pods
    readonly namespaces: SandboxNamespaces
    readonly settings: PodSettings
    /** Makes the name of a Pod. */
    readonly newPodName: () => string
    /** Ends all waits. */
    readonly signal: AbortSignal
  }

/** Opens the volumes. Null if the operator names no storage class. Rejects as `openClaims` does. */
export async function openVolumes(deps: OpenVolumesDeps): Promise<OpenVolumes | null> {
  const { namespace: base, claimSettings, newPodName, filesIdleMs, filesStartLimitMs, clock } = deps
  const { tools = TOOLBOX_IN_IMAGE } = deps
  if (claimSettings === null) return null
  const links = makeAgentLinks(deps, { container: FILES_CONTAINER, tools })
  const filesPods = makeFilesPods({
    ...deps,
    links,
    tools,
    pace: makeStartPace(clock),
    newName: newPodName,
    ...(filesIdleMs === undefined ? {} : { idleMs: filesIdleMs }),
    ...(filesStartLimitMs === undefined ? {} : { startLimitMs: filesStartLimitMs }),
  })
  return {
    claims: await openClaims({ ...deps, base, settings: claimSettings, filesPods }),
    ownsPod: (name) => filesPods.owns(name),
    async close() {
      try {
        await filesPods.close()
      } finally {
        links.close()
      }
    },
  }
}
