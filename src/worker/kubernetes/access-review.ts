import type { ApiClient } from './api-client.ts'

/** A right in all namespaces: a verb on a resource, such as `create` on `namespaces`. */
export type Right = {
  readonly verb: string
  /** The API group. Empty: the core group. */
  readonly group: string
  readonly resource: string
  /** The only object that the right is for. */
  readonly name?: string
}

/** Asks the API server which of these rights the caller lacks in the cluster. */
export async function findMissingRights(
  client: Pick<ApiClient, 'request'>,
  rights: readonly Right[],
): Promise<readonly Right[]> {
  const answers = await Promise.all(
    rights.map((resourceAttributes) =>
      client.request<{ readonly status: { readonly allowed: boolean } }>(
        'POST',
        '/apis/authorization.k8s.io/v1/selfsubjectaccessreviews',
        {
          apiVersion: 'authorization.k8s.io/v1',
          kind: 'SelfSubjectAccessReview',
          spec: { resourceAttributes },
        },
      ),
    ),
  )
  return rights.filter((_, index) => answers[index]?.status.allowed !== true)
}

/** Asks the API server who the caller is. */
export async function readOwnUser(client: Pick<ApiClient, 'request'>): Promise<string> {
  const { status } = await client.request<{ readonly status: { readonly userInfo: { readonly username: string } } }>(
    'POST',
    '/apis/authentication.k8s.io/v1/selfsubjectreviews',
    { apiVersion: 'authentication.k8s.io/v1', kind: 'SelfSubjectReview' },
  )
  return status.userInfo.username
}
