// Event-driven jobs in Azure Container Apps: one execution for each waiting task, none while the queue is empty.
// Checked against: the resource types' API version 2025-01-01, of which the rule's `identity` is part; syntax by pycep 0.7.1.
//
//   az deployment group create --resource-group GROUP --template-file deploy/container-apps/main.bicep \
//     --parameters environmentName=ENV storageAccountName=ACCOUNT queueName=QUEUE image=REGISTRY/jobq:TAG
//
// SIGTERM comes 30 s before SIGKILL, and no field changes that for jobs: JOBQ_STOP_GRACE and 10 s to give back fit in.

@description('Where the resources are made.')
param location string = resourceGroup().location

@description('An environment of Container Apps that exists.')
param environmentName string

@description('A storage account that exists, with the queue in it.')
param storageAccountName string

@description('The queue of the tasks.')
param queueName string

@description('An image that is built from deploy/Dockerfile, or from that image.')
param image string

@description('Tasks at once in one execution.')
@minValue(1)
param slots int = 1

@description('Executions at once, at most.')
param maxExecutions int = 30

@description('Seconds after which an execution is ended, whatever it does: more than the longest task takes.')
param replicaTimeout int = 86400

// Storage Queue Data Contributor: a worker updates messages (renews, requeues), which no lesser role permits.
var queueContributor = '974c5e8b-45b9-4653-ba55-5f855dd0fb88'

resource environment 'Microsoft.App/managedEnvironments@2025-01-01' existing = {
  name: environmentName
}

resource account 'Microsoft.Storage/storageAccounts@2023-05-01' existing = {
  name: storageAccountName
}

resource identity 'Microsoft.ManagedIdentity/userAssignedIdentities@2023-01-31' = {
  name: 'jobq-worker'
  location: location
}

resource access 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(account.id, identity.id, queueContributor)
  scope: account
  properties: {
    principalId: identity.properties.principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', queueContributor)
  }
}

resource job 'Microsoft.App/jobs@2025-01-01' = {
  name: 'jobq-worker'
  location: location
  identity: {
    type: 'UserAssigned'
    userAssignedIdentities: {
      '${identity.id}': {}
    }
  }
  properties: {
    environmentId: environment.id
    configuration: {
      triggerType: 'Event'
      replicaTimeout: replicaTimeout
      replicaRetryLimit: 0
      eventTriggerConfig: {
        parallelism: 1
        replicaCompletionCount: 1
        scale: {
          minExecutions: 0
          maxExecutions: maxExecutions
          pollingInterval: 30
          rules: [
            {
              name: 'queue'
              type: 'azure-queue'
              identity: identity.id
              metadata: {
                accountName: storageAccountName
                queueName: queueName
                queueLength: string(slots)
                queueLengthStrategy: 'all'
              }
            }
          ]
        }
      }
    }
    template: {
      containers: [
        {
          name: 'worker'
          image: image
          args: ['worker', '--num-workers', string(slots)]
          resources: {
            cpu: json('1')
            memory: '2Gi'
          }
          env: [
            { name: 'JOBQ_QUEUE', value: '${storageAccountName}/${queueName}' }
            { name: 'JOBQ_STOP_GRACE', value: '15s' }
            { name: 'JOBQ_TERMINATION_GRACE', value: '30s' }
            { name: 'JOBQ_LOG_FORMAT', value: 'json' }
            { name: 'AZURE_CLIENT_ID', value: identity.properties.clientId }
          ]
        }
      ]
    }
  }
}

output principalId string = identity.properties.principalId
