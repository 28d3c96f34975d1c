import type { IsolationLevel } from '../../../domain/isolation.ts'
import type { ApiClient } from '../../kubernetes/api-client.ts'
import { isApiError } from '../../kubernetes/api-error.ts'

/** The RuntimeClass of all Pods of a worker. */
export type RuntimeClass = {
  readonly name: string
  /** The runtime as the nodes' containerd or CRI-O knows it. */
  readonly handler: string
  readonly level: IsolationLevel
}

/** The handlers that the installation guides of gVisor and Kata Containers use. Others are taken as containers. */
const LEVELS: readonly { readonly handler: RegExp; readonly level: IsolationLevel }[] = [
  { handler: /^(runsc|gvisor)(-|$)/, level: 'gvisor' },
  { handler: /^kata(-|$)/, level: 'microvm' },
]

/** Reads a RuntimeClass of the cluster. Rejects in words if the cluster lacks it, or the worker may not read it. */
export async function readRuntimeClass(client: Pick<ApiClient, 'request'>, name: string): Promise<RuntimeClass> {
  try {
    const path = `/apis/node.k8s.io/v1/runtimeclasses/${encodeURIComponent(name)}`
    const { handler } = await client.request<{ readonly handler: string }>('GET', path)
    return { name, handler, level: LEVELS.find((one) => one.handler.test(handler))?.level ?? 'container' }
  } catch (error) {
    if (isApiError(error, 404))
      throw new Error(`the cluster has no RuntimeClass ${name} (SANDYARD_KUBERNETES_RUNTIME_CLASS)`, { cause: error })
    if (isApiError(error, 403))
      throw new Error(`the worker may not read the RuntimeClass ${name}: grant it get of runtimeclasses`, {
        cause: error,
      })
    throw error
  }
}
