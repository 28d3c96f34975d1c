import { canonicalReference, manifestKey, type ImageReference } from '../../domain/spec/image-reference.ts'
import type { PullPolicy } from '../../domain/spec/spec.ts'
import { StartError } from '../start-error.ts'
import type { RegistryAuth } from './image.ts'
import type { ImageRecord } from './image-records.ts'
import { makeRegistryClient, type RegistryClientDeps } from './registry-client.ts'
import { findSource, type ImageSource } from './source.ts'

/** The result of a pull. */
export type PullOutcome =
  /** The stored image is current, and this caller may use it. */
  | { readonly kind: 'current'; readonly record: ImageRecord }
  /** The same as `current`, and the registry now serves the image without a credential. */
  | { readonly kind: 'now_public'; readonly record: ImageRecord }
  | { readonly kind: 'fetch'; readonly source: ImageSource; readonly origin: 'anonymous' | 'credential' }

type PullRequest = {
  readonly reference: ImageReference
  /** The stored record of the reference. Null when there is none. */
  readonly record: ImageRecord | null
  readonly policy: PullPolicy
  readonly auth: RegistryAuth | null
  readonly signal: AbortSignal
}

/**
 * Requests an image from the registry with the caller's credential. With `always`, the reference is resolved again.
 * With another policy, a stored image is checked only if it was pulled with a credential. It is looked up by digest, so
 * that only callers with access may use it. With `never`, nothing is fetched, and a caller who can't prove access is
 * refused.
 */
export async function pullImage(
  deps: RegistryClientDeps & { readonly architecture: string },
  request: PullRequest,
): Promise<PullOutcome> {
  const { reference, record, policy, auth, signal } = request
  const name = canonicalReference(reference)
  const registry = makeRegistryClient(deps, reference, auth)
  const key = manifestKey(reference)
  if (record !== null) {
    const found = await registry.headManifest(policy === 'always' ? key : record.resolved_digest, signal)
    if (found === record.resolved_digest) {
      const isOpenNow = record.origin === 'credential' && !registry.hasUsedCredential()
      return { kind: isOpenNow ? 'now_public' : 'current', record }
    }
    if (policy === 'never') {
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
  return { kind: 'fetch', source, origin: registry.hasUsedCredential() ? 'credential' : 'anonymous' }
}
