import { createHmac, timingSafeEqual } from 'node:crypto'
import type { ImageReference } from '../../domain/spec/image-reference.ts'

/** Who may pull what: a name and a password for each repository, which follow from a secret, so that nothing is stored for them. */
export type PullAccess = {
  /** The credential that reads one repository and nothing else. */
  credentialOf(repository: string): { readonly username: string; readonly password: string }
  /** The repository that an `Authorization` header opens. Null if it is missing or wrong. */
  repositoryIn(authorization: string | undefined): string | null
}

/** Makes the access of a registry. `secret` has at least 32 random bytes. */
export function makePullAccess(secret: Buffer): PullAccess {
  const passwordOf = (repository: string): string => createHmac('sha256', secret).update(repository).digest('base64url')
  return {
    credentialOf: (repository) => ({ username: repository, password: passwordOf(repository) }),
    repositoryIn(authorization) {
      const [, encoded = ''] = /^Basic ([A-Za-z0-9+/]+={0,2})$/i.exec(authorization ?? '') ?? []
      const text = Buffer.from(encoded, 'base64').toString('utf8')
      const colon = text.indexOf(':')
      if (colon < 1) return null
      const repository = text.slice(0, colon)
      const [given, right] = [Buffer.from(text.slice(colon + 1)), Buffer.from(passwordOf(repository))]
      return given.length === right.length && timingSafeEqual(given, right) ? repository : null
    },
  }
}

/** The repository of an image in the registry: its name with its host, which may have no colon there. */
export function repositoryOf({ registry, repository }: Pick<ImageReference, 'registry' | 'repository'>): string {
  return `${registry.replaceAll(/[^a-z0-9.]+/g, '-').replaceAll(/^[-.]+|[-.]+$/g, '')}/${repository}`
}
