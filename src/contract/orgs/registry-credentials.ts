import { Type } from 'typebox'
import { REGISTRY_HOST_RULE } from '../../domain/orgs/registry-host.ts'
import { DateTime, requestObject, pageOf, Uuid } from '../common.ts'
import { pageQuery } from '../sandboxes/sandboxes.ts'

/** Credentials for image registries. These routes are the project's own: the published description has none for them. */

export const RegistryCredentialReply = Type.Object(
  { id: Uuid, host: Type.String(), username: Type.String(), created_at: DateTime },
  { title: 'RegistryCredential', description: 'A credential for a registry; its password is never shown.' },
)

export const RegistryCredentialPage = pageOf(RegistryCredentialReply, 'RegistryCredentialPage')

export const SaveCredentialInput = requestObject(
  {
    host: Type.String({ description: `${REGISTRY_HOST_RULE}.` }),
    username: Type.String(),
    password: Type.String({ format: 'password' }),
  },
  { title: 'SaveCredentialInput', description: 'A name and password for one registry.' },
)

export const RegistryCredentialIdParams = requestObject({ credential_id: Uuid })
export const ListRegistryCredentialsQuery = requestObject(pageQuery)
