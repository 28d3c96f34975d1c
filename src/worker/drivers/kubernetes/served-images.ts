import type { DesiredRun } from '../../../contract/workers/worker-protocol.ts'
import { isLocalOnly, parseImageReference } from '../../../domain/spec/image-reference.ts'
import type { LoadedImages } from '../../registry/loaded-images.ts'
import { repositoryOf, type PullAccess } from '../../registry/pull-access.ts'

/** Images that were loaded into this worker, as its Pods pull them. */
export type ServedImages = {
  /**
   * Replaces the image of a run by the one of the worker's registry, with its credential, if it was loaded. Returns the run as it is if the
   * cluster is to pull its image. The rule is that of the image store: `always` asks the registry that the image names, if it names one. Rejects with
   * `StartError` for an invalid name.
   */
  resolve(desired: DesiredRun): Promise<DesiredRun>
  /** Whether `resolve` gave a run its credential. That one is not the organization's own, and the same for all runs of the image. */
  isServed(desired: Pick<DesiredRun, 'spec' | 'registry_auth'>): boolean
}

type ServedImagesInput = {
  readonly images: Pick<LoadedImages, 'inspect'>
  readonly access: Pick<PullAccess, 'credentialOf'>
  /** How nodes name the registry: `HOST:PORT`. */
  readonly address: string
}

/** Makes the resolver of loaded images. */
export function makeServedImages({ images, access, address }: ServedImagesInput): ServedImages {
  return {
    async resolve(desired) {
      const { spec } = desired
      const record = await images.inspect(spec.image)
      const parsed = record === null ? null : parseImageReference(record.reference, '')
      if (record === null || parsed?.ok !== true) return desired
      if (spec.pull_policy === 'always' && !isLocalOnly(parsed.reference)) return desired
      const repository = repositoryOf(parsed.reference)
      return {
        ...desired,
        spec: { ...spec, image: `${address}/${repository}@${record.digest}`, pull_policy: 'if_missing' },
        registry_auth: access.credentialOf(repository),
      }
    },
    isServed({ spec, registry_auth }) {
      if (registry_auth === null) return false
      const { username, password } = registry_auth
      return spec.image.startsWith(`${address}/${username}@`) && password === access.credentialOf(username).password
    },
  }
}
