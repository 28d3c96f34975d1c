import type { DesiredRun } from '../../../contract/workers/worker-protocol.ts'
import { isLocalOnly, parseImageReference } from '../../../domain/spec/image-reference.ts'
import type { LoadedImages } from '../../registry/loaded-images.ts'
import { repositoryOf, type PullAccess } from '../../registry/pull-access.ts'
import type { ToolboxImages } from '../../registry/toolbox-images.ts'

/** Images that were loaded into this worker, as its Pods pull them. */
export type ServedImages = {
  /**
   * Replaces the image of a run by the one of the worker's registry, with its credential, if it was loaded. Returns the
   * run as it is if the cluster is to pull its image. The rule is that of the image store: `always` asks the registry
   * that the image names, if it names one. Rejects with `StartError` for an invalid name.
   */
  resolve(desired: DesiredRun): Promise<DesiredRun>
  /** Whether `resolve` gave a run its credential. That one is not the organization's own, and the same for all runs of the image. */
  isServed(desired: Pick<DesiredRun, 'spec' | 'registry_auth'>): boolean
  /** Whether the image that `resolve` gave a run has the toolbox. */
  hasToolbox(desired: Pick<DesiredRun, 'spec' | 'registry_auth'>): boolean
  /** The digest of an image as it was loaded, by the digest that a Pod reports. */
  loadedDigestOf(digest: string): string
}

type ServedImagesInput = {
  readonly images: Pick<LoadedImages, 'inspect'>
  /** The same images with the toolbox, which runs then get. Null: this worker has no toolbox. */
  readonly toolbox: Pick<ToolboxImages, 'digestWith' | 'digestWithout'> | null
  readonly access: Pick<PullAccess, 'credentialOf'>
  /** How nodes name the registry: `HOST:PORT`. */
  readonly address: string
}

/** Makes the resolver of loaded images. */
export function makeServedImages({ images, toolbox, access, address }: ServedImagesInput): ServedImages {
  const isServed: ServedImages['isServed'] = ({ spec, registry_auth }) => {
    if (registry_auth === null) return false
    const { username, password } = registry_auth
    return spec.image.startsWith(`${address}/${username}@`) && password === access.credentialOf(username).password
  }
  return {
    async resolve(desired) {
      const { spec } = desired
      const record = await images.inspect(spec.image)
      const parsed = record === null ? null : parseImageReference(record.reference, '')
      if (record === null || parsed?.ok !== true) return desired
      if (spec.pull_policy === 'always' && !isLocalOnly(parsed.reference)) return desired
      const repository = repositoryOf(parsed.reference)
      const digest = toolbox === null ? record.digest : await toolbox.digestWith(record.digest)
      return {
        ...desired,
        spec: { ...spec, image: `${address}/${repository}@${digest}`, pull_policy: 'if_missing' },
        registry_auth: access.credentialOf(repository),
      }
    },
    isServed,
    hasToolbox: (desired) => toolbox !== null && isServed(desired),
    loadedDigestOf: (digest) => toolbox?.digestWithout(digest) ?? digest,
  }
}
