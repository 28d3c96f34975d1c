import { createHash } from 'node:crypto'
import { canonicalReference, manifestKey, type ImageReference } from '../../domain/spec/image-reference.ts'
import type { PullPolicy } from '../../domain/spec/spec.ts'
import type { OrgId } from '../../domain/ids.ts'
import { StartError } from '../start-error.ts'
import type { RegistryAuth } from './image.ts'
import type { ImageRecord } from './image-records.ts'
import { makeRegistryClient, type RegistryClientDeps } from './registry/registry-client.ts'
import { findSource, type ImageSource } from './source.ts'

/** The result of a pull. */
export type PullOutcome =
  /** The stored image is current, and this caller may use it. */
  | { readonly kind: 'current'; readonly record: ImageRecord }
  /**
   * The stored image is current, and the registry now serves it without a credential. Later callers need not prove
   * access.
   */
  | { readonly kind: 'now_public'; readonly record: ImageRecord }
  | {
      readonly kind: 'fetch'
      readonly source: ImageSource
      /** Whether the registry has required the credential so far. It may first do so for a layer. */
      readonly origin: () => 'anonymous' | 'credential'
    }

type PullRequest = {
  readonly reference: ImageReference
  /** The stored record of the reference. Null when there is none. */
  readonly record: ImageRecord | null
  /** Whether the layers of the stored image were proved to the caller. If not, they are fetched again. */
  readonly isProven: boolean
  readonly policy: PullPolicy
  readonly auth: RegistryAuth | null
  readonly signal: AbortSignal
}

/**
 * Asks the registry, with the caller's credential, whether the stored image may be used or another image must be
 * fetched. With the policy `always`, the registry resolves the reference again. With another policy, the registry is
 * asked about a stored image only if that image was pulled with a credential. It is then asked for the image's digest,
 * so that only callers with access may use the image. With `never`, nothing is fetched, and a caller who can't prove
 * access is refused.
 */
export async function pullImage(
  deps: RegistryClientDeps & { readonly architecture: string },
  request: PullRequest,
): Promise<PullOutcome> {
  const { reference, record, isProven, policy, auth, signal } = request
  const name = canonicalReference(reference)
  const registry = makeRegistryClient(deps, reference, auth)
  let key = manifestKey(reference)
  if (record !== null) {
    const found = await registry.headManifest(policy === 'always' ? key : record.resolved_digest, signal)
    if (found === record.resolved_digest && isProven) {
      const isOpenNow = record.origin === 'credential' && !registry.hasUsedCredential()
      return { kind: isOpenNow ? 'now_public' : 'current', record }
    }
    if (found === record.resolved_digest) key = found
    else if (policy === 'never') {
      throw new StartError(
        'image',
        `image ${name} was pulled with a credential, its registry no longer has it to prove your access, and the pull policy is 'never'`,
      )
    }
  }
  const source = await findSource(registry, key, {
    imageName: `image ${name}`,
    architecture: deps.architecture,
    limits: deps.limits,
    signal,
  })
  return { kind: 'fetch', source, origin: () => (registry.hasUsedCredential() ? 'credential' : 'anonymous') }
}

/**
 * Returns the key by which concurrent pulls are shared. Neither organizations nor callers with different credentials
 * share a pull, because one of them may have no access. Organizations share the downloads of public layers all the same.
 */
export function pullKey(
  canonical: string,
  { policy, auth, org }: Pick<PullRequest, 'policy' | 'auth'> & { readonly org: OrgId },
): string {
  const secret =
    auth === null
      ? ''
      : createHash('sha256')
          .update(JSON.stringify([auth.username, auth.password]))
          .digest('hex')
  return `${canonical} ${policy} ${org} ${secret}`
}
