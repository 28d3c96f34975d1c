declare const brand: unique symbol
type Branded<Name extends string> = string & { readonly [brand]: Name }

export type OrgId = Branded<'OrgId'>
export type ApiKeyId = Branded<'ApiKeyId'>
export type SandboxId = Branded<'SandboxId'>
/**
 * One run of a sandbox, from its start to its end. Every message about the run carries this id, so that a late message
 * can't affect another run.
 */
export type RunId = Branded<'RunId'>
export type WorkerId = Branded<'WorkerId'>
export type EventId = Branded<'EventId'>
export type SshKeyId = Branded<'SshKeyId'>
export type CredentialId = Branded<'CredentialId'>
export type VolumeId = Branded<'VolumeId'>
export type SnapshotId = Branded<'SnapshotId'>
/** The making of a snapshot, which clients ask about while it is under way. */
export type SnapshotOperationId = Branded<'SnapshotOperationId'>
export type PreviewId = Branded<'PreviewId'>
export type WebhookId = Branded<'WebhookId'>
export type UserId = Branded<'UserId'>
export type MemberId = Branded<'MemberId'>
/** A session of a member in a browser. */
export type SessionId = Branded<'SessionId'>

/** Brands a string as an identifier. Use it where the string enters the program: a path parameter, a column, a new id. */
export function asId<Id extends Branded<string>>(text: string): Id {
  return text as Id // a brand exists only in types
}
