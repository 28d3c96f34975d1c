import type { ApiClient } from '../../src/worker/kubernetes/api-client.ts'
import { isApiError } from '../../src/worker/kubernetes/api-error.ts'
import { execInPod } from '../../src/worker/kubernetes/exec-stream.ts'
import { pause } from './pause.ts'

const NEVER = new AbortController().signal
const ATTEMPT_MS = 50
const LIMIT_MS = 120_000

type BarePod = {
  readonly client: ApiClient
  readonly namespace: string
  readonly name: string
  readonly image: string
  readonly vcpus: number
  /** Whether it has a volume, as every Pod with the token of its service account has one. */
  readonly hasVolume: boolean
}

/** Creates a Pod of one container by the API, and runs `true` in it as soon as that is possible. Satisfies `restricted`. */
export async function startBarePod({ client, namespace, name, image, vcpus, hasVolume }: BarePod): Promise<void> {
  const limits = { cpu: String(vcpus), memory: '64Mi' }
  await client.request('POST', `/api/v1/namespaces/${namespace}/pods`, {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name },
    spec: {
      restartPolicy: 'Never',
      automountServiceAccountToken: false,
      enableServiceLinks: false,
      securityContext: { runAsNonRoot: true, runAsUser: 1000, seccompProfile: { type: 'RuntimeDefault' } },
      ...(hasVolume ? { volumes: [{ name: 'empty', emptyDir: {} }] } : {}),
      containers: [
        {
          name: 'box',
          image,
          command: ['sleep', '3600'],
          ...(hasVolume ? { volumeMounts: [{ name: 'empty', mountPath: '/empty' }] } : {}),
          resources: { requests: limits, limits },
          securityContext: { allowPrivilegeEscalation: false, capabilities: { drop: ['ALL'] } },
        },
      ],
    },
  })
  const deadlineMs = performance.now() + LIMIT_MS
  const target = { namespace, pod: name, container: 'box', command: ['true'] }
  for (;;) {
    // Until the container runs, the API server or the kubelet refuses the command.
    const exec = await execInPod(client, target, NEVER).catch(() => null)
    exec?.stream.on('error', () => undefined).resume()
    const ended = await exec?.ended
    if (ended?.kind === 'exited') return
    if (performance.now() > deadlineMs) throw new Error(`Pod ${name} ran no command`)
    await pause(ATTEMPT_MS)
  }
}

/** Deletes a Pod, and waits until the API server has it no longer. */
export async function deleteBarePod({
  client,
  namespace,
  name,
}: Pick<BarePod, 'client' | 'namespace' | 'name'>): Promise<void> {
  const path = `/api/v1/namespaces/${namespace}/pods/${name}`
  await client.request('DELETE', path, { gracePeriodSeconds: 1 })
  const deadlineMs = performance.now() + LIMIT_MS
  for (;;) {
    try {
      await client.request('GET', path)
    } catch (error) {
      if (isApiError(error, 404)) return
      throw error
    }
    if (performance.now() > deadlineMs) throw new Error(`Pod ${name} did not end`)
    await pause(ATTEMPT_MS)
  }
}
